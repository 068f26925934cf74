# SPDX-License-Identifier: Apache-2.0
"""Compiles a step for a TPU and reports what it would need and take."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from lambdanet import cost
from lambdanet.training.tpu import chips, compiler, costs

# What an operation's name begins with where it is part of a gradient or of a function that was called.
_WRAPPERS = ("call", "gradient_tape")


@dataclasses.dataclass(frozen=True)
class Report:
    """What the compiler says of a step on one core.

    Attributes:
      topology: that it was compiled for.
      chip: of it.
      num_cores: of the topology.
      hbm: bytes of HBM needed, by `arguments`, `outputs` that are not in their place, `temporaries`.
      seconds: the compiler's estimate: its cycles over the clock.
      flops: of convolutions and products.
      bytes: moved to and from HBM.
      operations: every operation, as the program runs them.
      roots: the names of the models, which all names of their layers begin with.
      open_loops: loops whose length depends on what is computed; they are taken to run once.
    """

    topology: str
    chip: chips.Chip
    num_cores: int
    hbm: dict[str, int]
    seconds: float
    flops: float
    bytes: float
    operations: tuple[costs.Cost, ...]
    roots: tuple[str, ...]
    open_loops: tuple[str, ...]

    @property
    def hbm_needed(self) -> int:
        """Bytes of HBM of one core."""
        return sum(self.hbm.values())

    @property
    def of_peak(self) -> float:
        """The FLOPs a second as a part of the chip's peak."""
        return self.flops / self.seconds / self.chip.peak if self.seconds else 0.0

    def costliest(self, count: int = 10) -> list[costs.Cost]:
        """Returns the operations that take most of the time, the longest first."""
        return sorted(self.operations, key=lambda operation: -operation.cycles)[:count]

    def layers(self) -> dict[str, costs.Cost]:
        """Returns what each layer takes, its gradient included, the costliest first."""
        found: dict[str, list[costs.Cost]] = {}
        for operation in self.operations:
            found.setdefault(layer_of(operation.op_name, self.roots), []).append(operation)
        sums = {
            layer: costs.Cost(
                layer,
                "layer",
                layer,
                len(operations),
                sum(o.cycles for o in operations),
                sum(o.flops for o in operations),
                sum(o.bytes for o in operations),
            )
            for layer, operations in found.items()
        }
        return dict(sorted(sums.items(), key=lambda item: -item[1].cycles))


def compile_step(
    step: Callable[..., Any],
    inputs: Sequence[tf.TensorSpec],
    topology: str = "v3:2x2",
    roots: Collection[str] = (),
) -> Report:
    """Compiles a step for one core of a TPU.

    The layers choose what is fastest on a TPU. Variables that the step reads become arguments of the program,
    and those that it writes are updated in their place.

    Args:
      step: a function of tensors; it may read and write variables that exist already.
      inputs: the shape and type of each tensor.
      topology: one of `chips.TOPOLOGIES`.
      roots: the names of the models inside, which the names of their layers begin with.

    Raises:
      CompileError: the compiler refuses the step.
      InputError: unknown topology, or jax and libtpu are not as they should be.

    Example:
      >>> report = compile_step(lambda x: model(x, training=False), [tf.TensorSpec([128, 224, 224, 3])])
      >>> report.seconds, report.hbm_needed, next(iter(report.layers()))
    """
    chip = chips.chip_of(topology)
    compiler.versions()  # before anything takes time
    compiled = compiler.compile_hlo(lower(step, inputs), topology)
    profile = costs.profile(compiled.text)
    return Report(
        topology,
        chip,
        compiled.num_devices,
        {
            "arguments": compiled.arguments,
            "outputs": compiled.outputs - compiled.aliased,
            "temporaries": compiled.temporaries,
        },
        profile.cycles / chip.clock,
        profile.flops,
        profile.bytes,
        profile.operations,
        tuple(roots),
        profile.open_loops,
    )


def lower(step: Callable[..., Any], inputs: Sequence[tf.TensorSpec]) -> bytes:
    """Returns a step as a serialized HLO module, traced as for a TPU."""
    function = tf.function(step, input_signature=list(inputs), jit_compile=True, autograph=False)
    with cost.assume_device("TPU"):
        return function.experimental_get_compiler_ir(*inputs)(stage="hlo_serialized")


def layer_of(op_name: str, roots: Collection[str]) -> str:
    """Returns the layer that an operation belongs to.

    Args:
      op_name: such as "gradient_tape/resnet_50/stem_norm/mul".
      roots: names of models, which are left out.

    Example:
      >>> layer_of("gradient_tape/resnet_50/stem_norm/mul", ["resnet_50"])
      'stem_norm'
    """
    scopes = op_name.split("/")[:-1] if "/" in op_name else [op_name]
    while len(scopes) > 1 and (scopes[0].partition(".")[0] in _WRAPPERS or scopes[0] in roots):
        scopes = scopes[1:]
    return scopes[0] or "unnamed"
