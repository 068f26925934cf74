# SPDX-License-Identifier: Apache-2.0
"""The TPU compiler, as jax and libtpu hold it: the one module that knows the inside of these packages.

`libtpu` compiles for a named topology on any Linux machine; no TPU, network or account is needed. What is
imported here from `jax._src` and `jaxlib._jax` is nobody's public interface, so the extra `[tpu-check]` pins
the versions, and whatever is missing is told in one line.
"""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from lambdanet.errors import InputError
from lambdanet.training.tpu.cache import Cache

PACKAGES = ("jax", "jaxlib", "libtpu")
INSTALL = "pip install 'lambdanet[tpu-check]'"

# No look for a TPU's metadata server, several processes at a time, and silence on what is not there.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class CompileError(Exception):
    """The TPU compiler refused a program; the message is its own."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program as the TPU compiler made it, for one device.

    Attributes:
      text: the optimised HLO, scheduled, with the compiler's estimates of cycles.
      num_devices: of the topology.
      arguments, outputs, aliased, temporaries: bytes of HBM; `aliased` is what outputs share with arguments.
    """

    text: str
    num_devices: int
    arguments: int
    outputs: int
    aliased: int
    temporaries: int


def versions() -> dict[str, str]:
    """Returns the versions of `PACKAGES`.

    Raises:
      InputError: one is not installed.
    """
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise InputError(
                f"tpu-check needs {', '.join(PACKAGES)}: {package} is not installed; {INSTALL}"
            ) from None
    return found


def compile_hlo(hlo: bytes, topology: str, cache: Cache | None = None) -> Compiled:
    """Compiles a program for one device of a topology.

    Args:
      hlo: a serialized HLO module, before optimisation, as `experimental_get_compiler_ir` gives it.
      topology: such as "v3:2x2".
      cache: answers what this compiler has been asked before: the same program, topology and versions.

    Raises:
      CompileError: the compiler refuses the program.
      InputError: the packages are not installed, or not of the versions that this is written for.
    """
    installed = versions()
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    with _internals(installed):
        import numpy as np
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir
        from jax.experimental import topologies
        from jaxlib import _jax

        devices: Any = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        options.device_assignment = xla_client.DeviceAssignment.create(np.array([[0]]))
        device_list, client = _jax.DeviceList((devices[0],)), devices[0].client
        stablehlo = _jax.mlir.hlo_to_stablehlo(hlo)
        with mlir.make_ir_context():
            module = ir.Module.parse(stablehlo)
            _drop_copies(module.operation)
            module.operation.attributes["sym_name"] = ir.StringAttr.get("step")  # a new number each time
            key = _key(str(module.operation.get_asm(enable_debug_info=True)), topology, installed)
            answer = cache.read(key) if cache else None
            if answer is None:
                try:
                    answer = _answer(client.compile(module, device_list, options), len(devices))
                except _jax.JaxRuntimeError as error:
                    answer = {"refused": str(error)}
                if cache:
                    cache.write(key, answer)
    if "refused" in answer:
        raise CompileError(answer["refused"])
    return Compiled(**answer)


def _answer(executable: Any, num_devices: int) -> dict[str, Any]:
    memory = executable.get_compiled_memory_stats()
    return {
        "text": executable.hlo_modules()[0].to_string(),
        "num_devices": num_devices,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
    }


def _key(program: str, topology: str, installed: dict[str, str]) -> str:
    """The name of a question: a hash of all that the answer depends on."""
    return hashlib.sha256(repr((program, topology, sorted(installed.items()))).encode()).hexdigest()


def _drop_copies(operation: Any) -> None:
    """Replaces each `mhlo.copy`, which does nothing and cannot be lowered, by what it copies."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                _drop_copies(inner.operation)
                if inner.operation.name == "mhlo.copy":
                    inner.operation.results[0].replace_all_uses_with(inner.operation.operands[0])
                    inner.operation.erase()


@contextlib.contextmanager
def _internals(installed: dict[str, str]) -> Iterator[None]:
    """Tells in one line that a package has moved what is used of it."""
    try:
        yield
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        have = ", ".join(f"{package} {version}" for package, version in installed.items())
        raise InputError(
            f"tpu-check cannot use the inside of {have} ({type(error).__name__}: {error}); accepted: "
            f"the versions of {INSTALL}"
        ) from error
