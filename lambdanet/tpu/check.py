# SPDX-License-Identifier: Apache-2.0
"""Compiles a step for a TPU, in this process or a new one, and reports its memory and time."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf

from lambdanet import backend as K
from lambdanet.backend import device
from lambdanet.errors import InputError
from lambdanet.tpu import chips, compiler, costs, hlo
from lambdanet.tpu.compiler import Cache
from lambdanet.tpu.report import UNNAMED, Report, layer_of
from lambdanet.tpu.steps import TpuStep

BACKENDS = ("jax", "tensorflow")

_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_NODE = re.compile(r"{{node ([^}\s]+)}}|op_name=\"([^\"]+)\"|loc\(\"([^\"]+)\"")
_UNSUPPORTED = re.compile(r"No registered '(\w+)' OpKernel")


class DoesNotCompile(InputError):
    """A step that the compiler rejects; the message names the layer if it is known."""


class DoesNotFit(DoesNotCompile):
    """A step that needs more memory than a core has."""


def compile_step(
    step: Callable[..., Any],
    inputs: Sequence[tf.TensorSpec],
    topology: str = "v3:2x2",
    model_names: Collection[str] = (),
) -> Report:
    """Compiles a function of tensors for one core of a TPU; `check_step` does the same for a `TpuStep`.

    Layers choose their TPU forms. Variables that the function reads become arguments of the program; those
    that it writes are updated in place.

    Args:
      step: a function of tensors, which may use existing variables.
      inputs: the shape and type of each tensor; the first axis of the first tensor is the batch.
      topology: one of `chips.TOPOLOGIES`.
      model_names: the models in the step, to leave out of the names of their layers.

    Raises:
      DoesNotCompile: the compiler rejects the step.
      InputError: the topology is unknown, or jax and libtpu are missing or have other versions.

    Example:
      >>> report = compile_step(lambda x: model(x, training=False), [tf.TensorSpec([128, 224, 224, 3])])
      >>> report.seconds, report.hbm_needed, next(iter(report.layers()))
    """
    shape = inputs[0].shape if inputs else ()
    batch = shape[0] if shape else 1
    return check_step(
        TpuStep("step", step, tuple(inputs), batch, tuple(model_names)), topology
    )


def check_step(
    step: TpuStep, topology: str = "v3:2x2", cache: Cache | None = None
) -> Report:
    """Compiles a step for one core of a TPU, or for all of them where it is parallel.

    Args:
      step: the step of one core.
      topology: one of `chips.TOPOLOGIES`.
      cache: the cache of compilations; default: none.

    Raises:
      DoesNotFit: the step needs more memory than a core has.
      DoesNotCompile: the compiler rejects the step for another reason.
      InputError: the topology is unknown, or jax and libtpu are missing or have other versions.
    """
    chips.chip_of(topology)  # fail early
    compiler.versions()
    lower = None if K.ENGINE == "jax" else _trace(step)
    try:
        if lower is None:
            parallel = _data_parallel if step.is_parallel else None
            with device.assume("TPU"):
                compiled = compiler.compile_function(
                    step.function, step.inputs, topology, cache, parallel
                )
        else:
            compiled = compiler.compile_hlo(_serialize(lower, step), topology, cache)
    except compiler.CompileError as error:
        raise _compile_error(str(error), step, lower) from error
    profile = costs.profile(compiled.text)
    hbm = {
        "arguments": compiled.arguments,
        "outputs": compiled.outputs - compiled.aliased,
        "temporaries": compiled.temporaries,
    }
    return Report(
        step.name,
        topology,
        compiled.num_devices,
        step.batch,
        hbm,
        tuple(profile.operations),
        step.model_names,
        tuple(profile.unbounded_loops),
    )


def _data_parallel(mesh: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which Keras traces a step of `DataParallel` on the devices of a mesh."""
    names = [f"tpu:{number}" for number in range(mesh.size)]
    keras_mesh = K.keras.distribution.DeviceMesh(
        (mesh.size,), [compiler.BATCH_AXIS], names
    )
    keras_mesh._backend_mesh = mesh  # which Keras would make of devices that are there
    return K.keras.distribution.DataParallel(
        device_mesh=keras_mesh, auto_shard_dataset=False
    ).scope()


def _trace(step: TpuStep) -> Callable[[str], Any]:
    """Traces a step as for a TPU, and returns a function: the stage "hlo" or "hlo_serialized" -> its HLO."""
    function = tf.function(
        step.function, input_signature=step.inputs, jit_compile=True, autograph=False
    )
    with device.assume("TPU"):
        return function.experimental_get_compiler_ir(*step.inputs)


def _serialize(lower: Callable[[str], Any], step: TpuStep) -> bytes:
    try:
        return lower("hlo_serialized")
    except ValueError as error:  # an operation without an HLO form
        raise _compile_error(str(error), step) from error


def _compile_error(
    message: str, step: TpuStep, lower: Callable[[str], Any] | None = None
) -> DoesNotCompile:
    """Returns the error for a message of the compiler: one line, with the layer."""
    for pattern in _OUT_OF_MEMORY:
        if found := pattern.search(message):
            needed = _gib(found[1], found[2])
            available = _gib(found[3], found[4])
            largest = (
                f"; the largest arrays: {_largest(lower, step.model_names)}"
                if lower
                else ""
            )
            return DoesNotFit(
                f"{step.name} with {step.batch} examples needs {needed:.2f} GiB of HBM, and a core has "
                f"{available:.2f}{largest}"
            )
    nodes = [next(filter(None, groups)) for groups in _NODE.findall(message)]
    where = f" in layer {layer_of(nodes[0], step.model_names)}" if nodes else ""
    unsupported = _UNSUPPORTED.search(message)
    what = (
        f"{unsupported[1]} has no form for a TPU"
        if unsupported
        else message.strip().splitlines()[0][:500]
    )
    return DoesNotCompile(f"{step.name} does not compile for a TPU{where}: {what}")


def _largest(lower: Callable[[str], Any], model_names: Collection[str]) -> str:
    """Returns the three layers with the largest arrays of the unoptimized program, and their sizes."""
    module = hlo.parse(lower("hlo"))
    sizes: dict[str, int] = {}
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            layer = layer_of(instruction.op_name, model_names)
            if layer != UNNAMED and instruction.opcode not in (
                "parameter",
                "tuple",
                "broadcast",
                "while",
            ):
                sizes[layer] = max(
                    [
                        sizes.get(layer, 0),
                        *(array.bytes for array in instruction.arrays),
                    ]
                )
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{layer} {size / chips.GIB:.2f} GiB" for layer, size in largest)


def _gib(number: str, unit: str) -> float:
    return float(number) * {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2**10}.get(
        unit, 2**-30
    )


def check_in_process(
    build: Callable[[], TpuStep],
    topology: str,
    cache: Cache | None = None,
    backend: str = "tensorflow",
) -> Report:
    """Builds a step and compiles it as `check_step` does, in a new process.

    The TPU compiler takes gigabytes of memory, writes to stderr, and aborts its process on internal errors.

    Args:
      build: returns the step; it must be picklable, such as a `functools.partial` of a module's function.
      topology: one of `chips.TOPOLOGIES`.
      cache: the cache of compilations; default: none.
      backend: the backend of Keras 3 in that process, one of `BACKENDS`; its Keras is that of this process.

    Raises:
      DoesNotFit: the step needs more memory than a core has.
      DoesNotCompile: the compiler rejects the step for another reason, or aborts.
      InputError: `build` raises it, the topology is unknown, or jax and libtpu are missing or have other
        versions.
    """
    chips.chip_of(topology)  # fail early
    compiler.versions()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with concurrent.futures.ProcessPoolExecutor(
            1, context, _start_worker, (str(log),)
        ) as pool:
            try:
                variables = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
                # The process starts with these.
                with mock.patch.dict(os.environ, variables):
                    return pool.submit(
                        _build_and_check, build, topology, cache
                    ).result()
            except BrokenProcessPool:
                lines = [
                    line
                    for line in log.read_text(errors="replace").splitlines()
                    if line.strip()
                ]
                last = lines[-1][:500] if lines else "empty"
                raise DoesNotCompile(
                    f"the TPU compiler aborted; the end of its log: {last}"
                ) from None


def _start_worker(log: str) -> None:
    """Redirects the stderr of this process and its libraries to a file, and ends it with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)


def _build_and_check(
    build: Callable[[], TpuStep], topology: str, cache: Cache | None
) -> Report:
    with device.assume("TPU"):
        step = build()
    return check_step(step, topology, cache)
