# SPDX-License-Identifier: Apache-2.0
"""Compiles a step for a TPU, in this process or a new one, and reports its memory and time."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import device, keras
from lambdanet.core.errors import InputError, one_line
from lambdanet.tpu_estimates import chips, compiler, costs, hlo, steps
from lambdanet.tpu_estimates.compiler import Cache
from lambdanet.tpu_estimates.report import UNNAMED, Report, layer_of
from lambdanet.tpu_estimates.steps import TpuStep

BACKENDS = ("jax", "tensorflow")

_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_NODE = re.compile(r"{{node ([^}\s]+)}}|op_name=\"([^\"]+)\"|loc\(\"([^\"]+)\"")
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)", re.MULTILINE)  # in libtpu's log
_UNSUPPORTED = re.compile(r"No registered '(\w+)' OpKernel")


class DoesNotCompile(InputError):
    """A step that the compiler rejects; the message names the layer if it is known."""


class DoesNotFit(DoesNotCompile):
    """A step that needs more memory than a core has."""


def tpu_check(
    model: keras.Model,
    batch: Any,
    topology: str = "v5e:2x2",
    mode: str = "train",
    batch_size: int | None = None,
    layout: Mapping[str, Sequence[str | None]] | None = None,
    model_parallel: int = 1,
) -> Report:
    """Estimates the memory and time of a step of any model of Keras on JAX, on a TPU that is not there.

    The model need not have a layer of this library. Its step is the one of `fit` under
    `keras.distribution.DataParallel` on all cores of the topology, or with `model_parallel` under
    `ModelParallel`; a `train_step` of its own is compiled as it is. Layers of lambdanet choose their forms
    for a TPU.

    Args:
      model: a model of Keras 3, compiled with optimizer and loss unless the mode is "infer".
      batch: an example of what a core gets: inputs, or a tuple of inputs, labels and, if there are any,
        sample weights; arrays, or anything with a shape and a dtype. The first axis is the batch.
      topology: such as "v5e:2x2"; `lambdanet tpu-check --list_topologies` prints them.
      mode: "train", or "infer", from inputs to outputs on one core.
      batch_size: the size of the batch, in place of the example's.
      layout: patterns of the paths of variables, and for each axis of these "model" or None, as those of a
        `keras.distribution.LayoutMap`.
      model_parallel: the number of cores that divide these variables and compute on the same batch.

    Raises:
      DoesNotFit: the step needs more memory than a core has.
      DoesNotCompile: the step cannot be traced, or the compiler rejects it.
      InputError: an argument cannot be used, Keras does not run on JAX, or jax or libtpu is missing.

    Example:
      >>> report = tpu_check(model, (images, labels), topology="v6e:2x2")
      >>> report.seconds, report.hbm_needed, next(iter(report.layers()))
    """
    with device.assume("TPU"):
        step = steps.model_step(model, batch, mode, batch_size, layout, model_parallel)
    return check_step(step, topology)


def check_step(
    step: TpuStep,
    topology: str = "v3:2x2",
    cache: Cache | None = None,
) -> Report:
    """Compiles a step for one core of a TPU, or for all of them where it is parallel.

    Args:
      step: the step of one core.
      topology: one of `chips.TOPOLOGIES`.
      cache: the cache of compilations; default: none.

    Raises:
      DoesNotFit: the step needs more memory than a core has.
      DoesNotCompile: the compiler rejects the step for another reason.
      InputError: the topology is unknown, or jax and libtpu are missing or, for a step of TensorFlow, have
        other versions.
    """
    chips.chip_of(topology)  # fail early
    compiler.versions()
    lower = None if K.ENGINE == "jax" else _trace(step)
    try:
        if lower is None:
            with device.assume("TPU"):
                compiled = _compile_function(step, topology, cache)
        else:
            compiled = compiler.compile_hlo(_serialize(lower, step), topology, cache)
    except compiler.CompileError as error:
        raise _compile_error(str(error), step, lower) from error
    profile, note = _read_profile(compiled.text)
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
        step.model_parallel,
        note,
        (compiled.flops, compiled.bytes),
        compiled.remark,
    )


def _compile_function(
    step: TpuStep, topology: str, cache: Cache | None
) -> compiler.Compiled:
    try:
        return compiler.compile_function(
            step.function,
            step.inputs,
            topology,
            cache,
            functools.partial(_distribution, step) if step.is_parallel else None,
            partitions=step.partitions,
            model_parallel=step.model_parallel,
        )
    except (InputError, OSError, compiler.CompileError):
        raise
    except Exception as error:  # of any kind: the step may be the user's
        raise DoesNotCompile(
            f"{step.name} cannot be traced: {one_line(error)[:500]}"
        ) from error


def _distribution(step: TpuStep, mesh: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which Keras traces a step of all devices of a mesh."""
    names = [f"tpu:{number}" for number in range(mesh.size)]
    keras_mesh = keras.distribution.DeviceMesh(
        mesh.devices.shape, list(mesh.axis_names), names
    )
    keras_mesh._backend_mesh = mesh  # which Keras would make of devices that are there
    if step.model_parallel == 1:
        return keras.distribution.DataParallel(
            device_mesh=keras_mesh, auto_shard_dataset=False
        ).scope()
    layouts = steps.layout_map(keras_mesh, step.layout)
    return keras.distribution.ModelParallel(
        layout_map=layouts,
        batch_dim_name=compiler.BATCH_AXIS,
        auto_shard_dataset=False,
    ).scope()


def _read_profile(text: str) -> tuple[costs.Profile, str]:
    """Returns the costs of a program, and why there are none where its text has another form."""
    installed = compiler.versions()
    libtpu = installed["libtpu"]
    if not text:
        jaxlib = installed["jaxlib"]
        return costs.Profile(), (
            f"jaxlib {jaxlib} cannot read the program of libtpu {libtpu}; pip install 'jax[tpu]' installs "
            "versions that belong together"
        )
    try:
        profile = costs.profile(text)
    # The text is not a public format.
    except (ArithmeticError, AttributeError, LookupError, StopIteration, ValueError):
        profile = costs.Profile()
    if not any(cost.cycles for cost in profile.operations):
        return costs.Profile(), f"libtpu {libtpu} writes no cycles that can be read"
    return profile, ""


def _trace(step: TpuStep) -> Callable[[str], Any]:
    """Traces a step as for a TPU, and returns a function: the stage "hlo" or "hlo_serialized" -> its HLO."""
    import tensorflow as tf

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
      InputError: `build` raises it, the topology is unknown, or jax and libtpu are missing or, for a step of
        TensorFlow, have other versions.
    """
    chips.chip_of(topology)  # fail early
    compiler.versions()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with concurrent.futures.ProcessPoolExecutor(
            1, context, _start_worker, (str(log),)
        ) as pool:
            own = dict(os.environ)
            # The process starts with these.
            os.environ.update(KERAS_BACKEND=backend, JAX_PLATFORMS="cpu")
            try:
                return pool.submit(_build_and_check, build, topology, cache).result()
            except BrokenProcessPool:
                text = log.read_text(errors="replace").strip()
                fatal = _FATAL.search(text)
                cause = fatal[1] if fatal else text.rpartition("\n")[2]
                raise DoesNotCompile(
                    f"the TPU compiler aborted: {cause[:500] or 'its log is empty'}"
                ) from None
            finally:
                os.environ.clear()
                os.environ.update(own)


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
