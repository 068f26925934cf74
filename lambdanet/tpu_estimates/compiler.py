# SPDX-License-Identifier: Apache-2.0
"""The TPU compiler of jax and libtpu.

`libtpu` compiles for a named topology on any Linux machine, without a TPU, network or account. Programs of
JAX are compiled by its public interface. Those of TensorFlow need private parts of jax and jaxlib
(`jax._src`, `jaxlib._jax`), which only this module imports; the extra `[tpu-check-tensorflow]` pins their
versions, and other versions give an `InputError`.
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

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import cache_dir, write_atomic

PACKAGES = ("jax", "jaxlib", "libtpu")
# The axes of a mesh.
BATCH_AXIS = "batch"
MODEL_AXIS = "model"
INSTALL = "pip install 'lambdanet[tpu-check]'"
INSTALL_TENSORFLOW = "pip install 'lambdanet[tpu-check-tensorflow]'"

# Skip the search for a metadata server, and allow several processes at a time.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

_WITHOUT_SPARSE_CORES = {
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": False,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": False,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": False,
    "xla_tpu_enable_offloading_copy_to_sparsecore": False,
}


class Cache:
    """Results as gzipped JSON, each in a file of `folder` named by its key; the first write makes it.

    Args:
      folder: the folder; default: one in $LAMBDANET_HOME (default: ~/.cache/lambdanet).
    """

    def __init__(self, folder: Path | None = None):
        self.folder = folder or cache_dir() / "tpu_check"

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
      text: the optimized and scheduled HLO, with the compiler's estimates of cycles; empty where the compiler
        does not write it.
      num_devices: the number of devices in the topology.
      arguments, outputs, temporaries: their HBM in bytes.
      aliased: the HBM that outputs share with arguments, in bytes.
      flops, bytes: the compiler's own counts of FLOPs and HBM traffic, in which loops count once.
      remark: how the program differs from what the device would run; empty if it does not.
    """

    text: str
    num_devices: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    flops: float = 0.0
    bytes: float = 0.0
    remark: str = ""


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
    **division: Any,
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
      **division: `partitions` and `model_parallel`, as in `lower`.

    Raises:
      CompileError: the compiler rejects the program.
      InputError: the packages are missing, or the compiler does not know the topology.
    """
    installed = versions()
    devices = devices_of(topology)
    lowered = lower(function, inputs, devices, parallel, **division)
    key = _key(lowered.as_text(debug_info=True), topology, installed)

    def compile_once() -> dict[str, Any]:
        compiled = lowered.compile()
        text = _text(compiled)
        remark = ""
        if not text and topology.startswith("tpu7x"):
            compiled = lowered.compile(compiler_options=_WITHOUT_SPARSE_CORES)
            text = _text(compiled)
            remark = f"without work for the SparseCores, which jaxlib {installed['jaxlib']} cannot read"
        counts = compiled.cost_analysis() or {}
        return {
            **_fields(text, compiled.memory_analysis(), len(devices)),
            "flops": counts.get("flops", 0.0),
            "bytes": counts.get("bytes accessed", 0.0),
            "remark": remark,
        }

    return _cached_or_compile(key, cache, compile_once)


def devices_of(topology: str) -> Sequence[Any]:
    """Returns the devices of a topology; raises `InputError` where the compiler does not know it."""
    _prepare_environment()
    import jax
    from jax.experimental import topologies

    options = {}
    if topology.endswith(":1x1"):
        # Else libtpu 0.0.42 divides it between hosts of four chips.
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        return topologies.get_topology_desc(
            platform="tpu", topology_name=topology, **options
        ).devices
    except jax.errors.JaxRuntimeError as error:
        libtpu = versions()["libtpu"]
        raise InputError(
            f"libtpu {libtpu} does not know topology {topology!r}: {one_line(error)}"
        ) from None


def _text(compiled: Any) -> str:
    """Returns the text of a program; empty where a libtpu writes what this jaxlib cannot read."""
    import jax

    try:
        return str(compiled.as_text())
    except jax.errors.JaxRuntimeError:
        return ""


def lower(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    devices: Sequence[Any],
    parallel: Callable[[Any], contextlib.AbstractContextManager[Any]] | None = None,
    partitions: Any = None,
    model_parallel: int = 1,
) -> Any:
    """Traces a function as `compile_function` does, for some devices.

    Args:
      function, inputs, parallel: as in `compile_function`.
      devices: the devices of the topology.
      partitions: for each array of the state the axes of the mesh between which it is divided, a
        `jax.sharding.PartitionSpec`; None: each device has all of the state.
      model_parallel: the number of devices that share a part of the data and divide the state.

    Returns:
      A `jax.stages.Lowered`.
    """
    import jax
    import numpy as np

    # No lines of source files in the cache's key.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    array = np.array(devices if parallel else devices[:1])
    if model_parallel == 1:
        mesh = jax.sharding.Mesh(array, (BATCH_AXIS,))
    else:
        if array.size % model_parallel:
            accepted = f"a divisor of {array.size}, the number of cores"
            raise invalid("model_parallel", accepted, model_parallel)
        array = array.reshape(-1, model_parallel)
        mesh = jax.sharding.Mesh(array, (BATCH_AXIS, MODEL_AXIS))

    def sharding(axes: Any) -> Any:
        return jax.sharding.NamedSharding(mesh, axes)

    whole = sharding(jax.sharding.PartitionSpec())
    divided = sharding(jax.sharding.PartitionSpec(BATCH_AXIS))
    of_state = whole
    if partitions is not None:
        is_axes = lambda x: isinstance(x, jax.sharding.PartitionSpec)  # noqa: E731
        of_state = jax.tree.map(sharding, partitions, is_leaf=is_axes)

    def of_all_devices(x: Any) -> Any:
        count = mesh.shape[BATCH_AXIS] * x.shape[0]
        return jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype)

    state, *data = inputs
    step = jax.jit(
        function,
        donate_argnums=0,
        in_shardings=(of_state, *[divided] * len(data)),
        out_shardings=(None, of_state) if parallel else None,
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
      InputError: the packages are missing or have other versions, or the compiler does not know the topology.
    """
    with _internals() as installed:
        import numpy as np
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir
        from jaxlib import _jax

        devices = devices_of(topology)
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
    _prepare_environment()
    try:
        yield installed
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        packages = ", ".join(
            f"{package} {version}" for package, version in installed.items()
        )
        raise InputError(
            f"tpu-check on TensorFlow cannot use {packages} ({type(error).__name__}: {error}); "
            f"{INSTALL_TENSORFLOW} installs the versions that it needs"
        ) from error


def _prepare_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
