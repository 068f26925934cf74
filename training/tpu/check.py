# SPDX-License-Identifier: Apache-2.0
"""Compiles a step for a TPU and reports what it would need and take."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from lambdanet import device
from lambdanet.errors import InputError
from lambdanet.training.tpu import chips, compiler, costs, hlo
from lambdanet.training.tpu.cache import Cache
from lambdanet.training.tpu.report import UNNAMED, Report, layer_of
from lambdanet.training.tpu.steps import Step

_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
_NODE = re.compile(r"{{node ([^}\s]+)}}|op_name=\"([^\"]+)\"|loc\(\"([^\"]+)\"")
_UNSUPPORTED = re.compile(r"No registered '(\w+)' OpKernel")


class DoesNotCompile(InputError):
    """The step cannot run on a TPU as it is; the message names the layer where that is known."""


class DoesNotFit(DoesNotCompile):
    """The step needs more memory than a core has."""


def compile_step(
    step: Callable[..., Any],
    inputs: Sequence[tf.TensorSpec],
    topology: str = "v3:2x2",
    roots: Collection[str] = (),
) -> Report:
    """Compiles a function of tensors for one core of a TPU; `check` does so for a `Step`.

    The layers choose what is fastest on a TPU. Variables that the function reads become arguments of the
    program, and those that it writes are updated in their place.

    Args:
      step: a function of tensors; it may read and write variables that exist already.
      inputs: the shape and type of each tensor; the first axis of the first is taken for the batch.
      topology: one of `chips.TOPOLOGIES`.
      roots: the names of the models inside, which the names of their layers begin with.

    Raises:
      DoesNotCompile: the compiler refuses the step.
      InputError: unknown topology, or jax and libtpu are not as they should be.

    Example:
      >>> report = compile_step(lambda x: model(x, training=False), [tf.TensorSpec([128, 224, 224, 3])])
      >>> report.seconds, report.hbm_needed, next(iter(report.layers()))
    """
    shape = inputs[0].shape if inputs else ()
    return check(Step("step", step, tuple(inputs), shape[0] if shape else 1, tuple(roots)), topology)


def check(step: Step, topology: str = "v3:2x2", cache: Cache | None = None) -> Report:
    """Compiles a step for one core of a TPU.

    Args:
      step: of one core.
      topology: one of `chips.TOPOLOGIES`.
      cache: keeps what the compiler answers; None: nothing is kept.

    Raises:
      DoesNotFit: it needs more memory than a core has.
      DoesNotCompile: the compiler refuses it otherwise.
      InputError: unknown topology, or jax and libtpu are not as they should be.
    """
    chips.chip_of(topology)  # before anything takes time
    compiler.versions()
    lowered = _lowered(step)
    try:
        program = lowered("hlo_serialized")
    except ValueError as error:  # an operation that has no form in HLO
        raise _explained(str(error), step) from error
    try:
        compiled = compiler.compile_hlo(program, topology, cache)
    except compiler.CompileError as error:
        raise _explained(str(error), step, lowered) from error
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
        profile.operations,
        step.roots,
        profile.open_loops,
    )


def _lowered(step: Step) -> Callable[[str], Any]:
    """Traces a step as for a TPU; the result gives its HLO in the form that it is asked for."""
    function = tf.function(step.function, input_signature=step.inputs, jit_compile=True, autograph=False)
    with device.assume("TPU"):
        return function.experimental_get_compiler_ir(*step.inputs)


def _explained(message: str, step: Step, lowered: Callable[[str], Any] | None = None) -> DoesNotCompile:
    """Returns the error for a message of a compiler: one line, with the layer that it is about."""
    for pattern in _OUT_OF_MEMORY:
        if found := pattern.search(message):
            needed, available = _gib(found[1], found[2]), _gib(found[3], found[4])
            largest = f"; the largest arrays: {_largest(lowered, step.roots)}" if lowered else ""
            return DoesNotFit(
                f"{step.name} with {step.batch} examples needs {needed:.2f} GiB of HBM, and a core has "
                f"{available:.2f}{largest}"
            )
    nodes = [next(filter(None, groups)) for groups in _NODE.findall(message)]
    where = f" in layer {layer_of(nodes[0], step.roots)}" if nodes else ""
    unsupported = _UNSUPPORTED.search(message)
    what = f"{unsupported[1]} has no form for a TPU" if unsupported else message.strip().splitlines()[0][:500]
    return DoesNotCompile(f"{step.name} does not compile for a TPU{where}: {what}")


def _largest(lowered: Callable[[str], Any], roots: Collection[str], count: int = 3) -> str:
    """Returns the layers with the largest arrays of a program before its optimisation, and their sizes."""
    module = hlo.parse(lowered("hlo"))
    sizes: dict[str, int] = {}
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            layer = layer_of(instruction.op_name, roots)
            if layer != UNNAMED and instruction.opcode not in ("parameter", "tuple", "broadcast", "while"):
                sizes[layer] = max([sizes.get(layer, 0), *(array.bytes for array in instruction.arrays)])
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{layer} {size / chips.GIB:.2f} GiB" for layer, size in largest)


def _gib(number: str, unit: str) -> float:
    return float(number) * {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2**10}.get(unit, 2**-30)
