# SPDX-License-Identifier: Apache-2.0
"""The TPU compiler of jax and libtpu.

`libtpu` compiles for a named topology on any Linux machine, without a TPU, network or account. Only this
module imports private parts of jax and jaxlib (`jax._src`, `jaxlib._jax`). The extra `[tpu-check]` pins their
versions; other versions give an `InputError`.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lambdanet.errors import InputError
from lambdanet.files import cache_dir, write_atomic

PACKAGES = ("jax", "jaxlib", "libtpu")
BATCH_AXIS = "batch"  # of a mesh
INSTALL = "pip install 'lambdanet[tpu-check]'"

# Skip the search for a metadata server, and allow several processes at a time.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class Cache:
    """Results as gzipped JSON, each in a file of `folder` named by its key; the first write makes it."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def open_default(cls) -> "Cache":
        """Returns the cache in $LAMBDANET_HOME (default: ~/.cache/lambdanet)."""
        return cls(cache_dir() / "tpu_check")

    def read(self, key: str) -> dict[str, Any] | None:
        """Returns a result; None if it is missing or cannot be read."""
        try:
            return json.loads(gzip.decompress(self._path(key).read_bytes()))
        except (OSError, EOFError, ValueError):
            return None

    def write(self, key: str, result: dict[str, Any]) -> None:
        """Stores a result, unless the folder cannot be written."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(
                self._path(key),
                gzip.compress(json.dumps(result).encode(), compresslevel=6),
            )

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"


class CompileError(Exception):
    """A program that the TPU compiler rejects, with the compiler's message."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program compiled for one device.

    Attributes:
      text: the optimized and scheduled HLO, with the compiler's estimates of cycles.
      num_devices: the number of devices in the topology.
      arguments, outputs, temporaries: their HBM in bytes.
      aliased: the HBM that outputs share with arguments, in bytes.
    """

    text: str
    num_devices: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int


def versions() -> dict[str, str]:
    """Returns the versions of `PACKAGES`; raises `InputError` if one is not installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            message = f"tpu-check needs {', '.join(PACKAGES)}: {package} is not installed; {INSTALL}"
            raise InputError(message) from None
    return found


def compile_function(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    topology: str,
    cache: Cache | None = None,
    parallel: Callable[[Any], contextlib.AbstractContextManager[Any]] | None = None,
) -> Compiled:
    """Compiles a function of JAX that updates its first argument, the state, in place.

    Args:
      function: the function of the state and of data.
      inputs: its two arguments, with a `jax.ShapeDtypeStruct` for each array; the data
        are the share of one device.
      topology: the topology, such as "v5e:2x2".
      cache: earlier results for the same program, topology and versions.
      parallel: the context of tracing for a mesh of all devices, between which the data are divided, and each
        of which has the state; None: one device, and a function that returns no state.

    Raises:
      CompileError: the compiler rejects the program.
      InputError: the packages are missing or have other versions.
    """
    with _internals() as installed:
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=topology
        ).devices
        lowered = lower(function, inputs, devices, parallel)
        key = _key(lowered.as_text(debug_info=True), topology, installed)

        def compile_once() -> dict[str, Any]:
            compiled = lowered.compile()
            return _fields(
                str(compiled.as_text()), compiled.memory_analysis(), len(devices)
            )

        return _cached_or_compile(key, cache, compile_once)


def lower(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    devices: Sequence[Any],
    parallel: Callable[[Any], contextlib.AbstractContextManager[Any]] | None = None,
) -> Any:
    """Traces a function as `compile_function` does, for some devices.

    Args:
      function, inputs, parallel: as in `compile_function`.
      devices: the devices of the topology.

    Returns:
      A `jax.stages.Lowered`.
    """
    import jax
    import numpy as np

    # No lines of source files in the cache's key.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    mesh = jax.sharding.Mesh(
        np.array(devices if parallel else devices[:1]), (BATCH_AXIS,)
    )
    whole, divided = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in ((), (BATCH_AXIS,))
    )

    def of_all_devices(x: Any) -> Any:
        return jax.ShapeDtypeStruct((mesh.size * x.shape[0], *x.shape[1:]), x.dtype)

    state, *data = inputs
    step = jax.jit(
        function,
        donate_argnums=0,
        in_shardings=(whole, *[divided] * len(data)),
        out_shardings=(None, whole) if parallel else None,
    )
    with parallel(mesh) if parallel else contextlib.nullcontext():
        return step.lower(state, *jax.tree.map(of_all_devices, data))


def compile_hlo(hlo: bytes, topology: str, cache: Cache | None = None) -> Compiled:
    """Compiles a program for one device of a topology.

    Args:
      hlo: a serialized, unoptimized HLO module, from `experimental_get_compiler_ir`.
      topology: the topology, such as "v3:2x2".
      cache: earlier results for the same program, topology and versions.

    Raises:
      CompileError: the compiler rejects the program.
      InputError: the packages are missing or have other versions.
    """
    with _internals() as installed:
        import numpy as np
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir
        from jax.experimental import topologies
        from jaxlib import _jax

        devices: Any = topologies.get_topology_desc(
            platform="tpu", topology_name=topology
        ).devices
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.device_assignment = xla_client.DeviceAssignment.create(np.array([[0]]))
        device_list = _jax.DeviceList((devices[0],))
        client = devices[0].client
        stablehlo = _jax.mlir.hlo_to_stablehlo(hlo)
        with mlir.make_ir_context():
            module = ir.Module.parse(stablehlo)
            _drop_copies(module.operation)
            # The name has a counter.
            module.operation.attributes["sym_name"] = ir.StringAttr.get("step")
            key = _key(
                str(module.operation.get_asm(enable_debug_info=True)),
                topology,
                installed,
            )
            return _cached_or_compile(
                key,
                cache,
                lambda: describe(
                    client.compile(module, device_list, options), len(devices)
                ),
            )


def describe(executable: Any, num_devices: int) -> dict[str, Any]:
    """Returns the fields of `Compiled` for an executable of jaxlib."""
    text = executable.hlo_modules()[0].to_string()
    return _fields(text, executable.get_compiled_memory_stats(), num_devices)


def _cached_or_compile(
    key: str, cache: Cache | None, compile_once: Callable[[], dict[str, Any]]
) -> Compiled:
    """Reads a result from the cache, or compiles and writes it; rejections are cached too."""
    import jax

    result = cache.read(key) if cache else None
    if result is None:
        try:
            result = compile_once()
        except jax.errors.JaxRuntimeError as error:
            result = {"refused": str(error)}
        if cache:
            cache.write(key, result)
    if "refused" in result:
        raise CompileError(result["refused"])
    return Compiled(**result)


def _fields(text: str, memory: Any, num_devices: int) -> dict[str, Any]:
    return {
        "text": text,
        "num_devices": num_devices,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }


def _key(program: str, topology: str, installed: dict[str, str]) -> str:
    """Returns the cache key: a hash of everything that the result depends on."""
    return hashlib.sha256(
        repr((program, topology, sorted(installed.items()))).encode()
    ).hexdigest()


def _drop_copies(operation: Any) -> None:
    """Replaces each `mhlo.copy`, a no-op that cannot be lowered, by its operand."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                _drop_copies(inner.operation)
                if inner.operation.name == "mhlo.copy":
                    inner.operation.results[0].replace_all_uses_with(
                        inner.operation.operands[0]
                    )
                    inner.operation.erase()


@contextlib.contextmanager
def _internals() -> Iterator[dict[str, str]]:
    """Yields the versions of `PACKAGES`, ready for use; a missing private part of jax is an `InputError`."""
    installed = versions()
    os.environ.update(
        {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    )
    try:
        yield installed
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        packages = ", ".join(
            f"{package} {version}" for package, version in installed.items()
        )
        raise InputError(
            f"tpu-check cannot use {packages} ({type(error).__name__}: {error}); {INSTALL} installs the "
            "versions that it needs"
        ) from error
