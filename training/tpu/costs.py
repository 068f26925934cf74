# SPDX-License-Identifier: Apache-2.0
"""What each operation of a compiled program costs: cycles, FLOPs and bytes, as often as it runs.

Cycles are the compiler's estimates. FLOPs are twice the multiply-adds of convolutions and products, of the
positions that are not padding. Bytes are those of HBM that an operation reads and writes, with the padding of
tiles.
"""

import dataclasses
import math
import re

from lambdanet.training.tpu import hlo, trip_counts
from lambdanet.training.tpu.hlo import Computation, Instruction, Module

# What moves and computes nothing.
_FREE = (
    "bitcast",
    "constant",
    "get-tuple-element",
    "parameter",
    "tuple",
    "copy-done",
    "async-done",
    "after-all",
)
_SLICES = ("dynamic-slice", "gather", "slice")


@dataclasses.dataclass(frozen=True)
class Cost:
    """An operation of the program.

    Attributes:
      name: of its instruction.
      opcode: such as "fusion".
      op_name: the TensorFlow operation that it comes from; empty if that is not told.
      times: how often it runs.
      cycles: estimated, of all times together.
      flops, bytes: of all times together.
    """

    name: str
    opcode: str
    op_name: str
    times: int
    cycles: int
    flops: float
    bytes: float


class Totals:
    """What the `operations` of a class cost together."""

    operations: tuple[Cost, ...]

    @property
    def cycles(self) -> int:
        """Estimated by the compiler."""
        return sum(cost.cycles for cost in self.operations)

    @property
    def flops(self) -> float:
        """Of the convolutions and products."""
        return sum(cost.flops for cost in self.operations)

    @property
    def bytes(self) -> float:
        """Moved to and from HBM."""
        return sum(cost.bytes for cost in self.operations)


@dataclasses.dataclass(frozen=True)
class Profile(Totals):
    """The operations of a program in their order, and its loops whose length is not known."""

    operations: tuple[Cost, ...]
    open_loops: tuple[str, ...]


def profile(text: str) -> Profile:
    """Returns what each operation of a program costs.

    Loops count as often as they run, a loop of unknown length once; of the branches of a condition, the one
    that takes most cycles counts.

    Args:
      text: of an optimised HLO module.
    """
    module = hlo.parse(text)
    entry = module.computations[module.entry]
    operations, open_loops = _walk(module, trip_counts.Scope(module, entry, {}), entry, 1)
    return Profile(tuple(operations), tuple(open_loops))


def _walk(
    module: Module, scope: trip_counts.Scope, computation: Computation, times: int
) -> tuple[list[Cost], list[str]]:
    operations: list[Cost] = []
    open_loops: list[str] = []

    def enter(name: str, inner: trip_counts.Scope, turns: int) -> None:
        more, more_open = _walk(module, inner, module.computations[name], turns)
        operations.extend(more)
        open_loops.extend(more_open)

    for instruction in computation.instructions.values():
        called = instruction.called
        if instruction.opcode == "while":
            turns, kept = trip_counts.count_turns(module, instruction, scope)
            if turns is None:
                open_loops.append(instruction.op_name or instruction.name)
            body = called["body"]
            inner = trip_counts.Scope(module, module.computations[body], {0: kept})
            enter(body, inner, times * (1 if turns is None else turns))
        elif instruction.opcode == "conditional":
            branches = [
                _walk(module, _open(module, name), module.computations[name], times)
                for name in called.values()
            ]
            costliest = max(branches, key=lambda branch: sum(cost.cycles for cost in branch[0]))
            operations += costliest[0]
            open_loops += costliest[1]
        elif instruction.opcode in ("call", "async-start") and instruction.cycles is None and called:
            name = next(iter(called.values()))
            given = {index: scope.value(operand) for index, operand in enumerate(instruction.operands)}
            enter(name, trip_counts.Scope(module, module.computations[name], given), times)
        elif instruction.opcode not in _FREE and "AllocateBuffer" not in instruction.attributes:
            operations.append(_cost(module, computation, instruction, times))
    return operations, open_loops


def _open(module: Module, name: str) -> trip_counts.Scope:
    return trip_counts.Scope(module, module.computations[name], {})


def _cost(module: Module, computation: Computation, instruction: Instruction, times: int) -> Cost:
    return Cost(
        instruction.name,
        instruction.opcode,
        _origin(computation, instruction),
        times,
        times * (instruction.cycles or 0),
        times * _flops(module, computation, instruction),
        times * _bytes(module, computation, instruction),
    )


def _origin(computation: Computation, instruction: Instruction) -> str:
    """The operation that an instruction comes from; for a copy without a name, that of what it copies."""
    seen: Instruction | None = instruction
    for _ in range(8):
        if seen is None or seen.op_name:
            break
        seen = computation.instructions.get(seen.operands[0])
    return seen.op_name if seen and seen.opcode != "parameter" else ""


def _flops(module: Module, computation: Computation, instruction: Instruction) -> float:
    if instruction.opcode == "fusion":
        inner = module.computations[instruction.called["calls"]]
        return sum(_flops(module, inner, fused) for fused in inner.instructions.values())
    if instruction.opcode == "convolution":
        return convolution_flops(instruction, *_operand_shapes(computation, instruction))
    if instruction.opcode == "dot":
        left, _ = _operand_shapes(computation, instruction)
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        depth = math.prod(left[int(axis)] for axis in axes[1].split(",") if axis) if axes else 1
        return 2.0 * math.prod(instruction.arrays[0].shape) * depth
    return 0.0


def _operand_shapes(computation: Computation, instruction: Instruction) -> list[tuple[int, ...]]:
    return [computation.instructions[name].arrays[0].shape for name in instruction.operands[:2]]


def convolution_flops(instruction: Instruction, inputs: tuple[int, ...], kernel: tuple[int, ...]) -> float:
    """Returns the FLOPs of a convolution, counting at each position what is not padding.

    Args:
      instruction: of it, with its `dim_labels` and `window`.
      inputs: the shape of its input.
      kernel: the shape of its kernel.
    """
    of_inputs, of_kernel, of_outputs = re.split("_|->", instruction.attribute("dim_labels"))
    outputs = instruction.arrays[0].shape
    window = _window(instruction.attributes)
    flops = (
        2.0 * outputs[of_outputs.index("b")] * outputs[of_outputs.index("f")] * kernel[of_kernel.index("i")]
    )
    flops /= int(instruction.attribute("batch_group_count") or 1)
    for axis, label in enumerate(sorted(set(of_outputs) - {"b", "f"})):
        settings = {name: values[axis] for name, values in window.items()}
        sizes = (shape[labels.index(label)] for shape, labels in ((inputs, of_inputs), (outputs, of_outputs)))
        flops *= _valid(*sizes, **settings)
    return flops


def _window(attributes: str) -> dict[str, list]:
    """Returns the settings of a window for each axis, those that are left out at their defaults."""
    found = re.search(r"window=\{([^}]*)\}", attributes)
    given = dict(setting.split("=") for setting in found[1].split()) if found else {}
    if not given:
        return {}
    sizes = [int(size) for size in given["size"].split("x")]
    window: dict[str, list] = {"size": sizes}
    for name in ("stride", "lhs_dilate", "rhs_dilate"):
        window[name] = [int(v) for v in given[name].split("x")] if name in given else [1] * len(sizes)
    window["pad"] = (
        [int(v.split("_")[0]) for v in given["pad"].split("x")] if "pad" in given else [0] * len(sizes)
    )
    return window


def _valid(
    inputs: int, outputs: int, size: int, stride: int, lhs_dilate: int, rhs_dilate: int, pad: int
) -> int:
    """The pairs of an output position and a kernel position that meet a number of the input."""
    extent = (inputs - 1) * lhs_dilate
    count = 0
    for place in range(size):
        # The outputs o with 0 <= o * stride + shift <= extent, where lhs_dilate divides what is between.
        shift = place * rhs_dilate - pad
        first, last = max(0, -(shift // stride)), min(outputs - 1, (extent - shift) // stride)
        if lhs_dilate == 1:
            count += max(0, last - first + 1)
        else:
            count += sum((o * stride + shift) % lhs_dilate == 0 for o in range(first, last + 1))
    return count


def _bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    """The bytes of HBM that an instruction reads and writes; of what it only slices, the slices."""
    if instruction.opcode.endswith("-start"):  # the result names both what is read and what is written
        return _in_hbm(instruction)
    inner = module.computations[instruction.called["calls"]] if instruction.opcode == "fusion" else None
    update = _update(inner, inner.root) if inner else _update(computation, instruction)
    total = update or _in_hbm(instruction)
    for index, name in enumerate(instruction.operands):
        operand = computation.instructions.get(name)
        if operand is None or (update and index == 0 and inner is None):
            continue
        total += _read(module, inner, index, operand) if inner else _in_hbm(operand)
    return total


def _read(module: Module, inner: Computation, index: int, operand: Instruction) -> float:
    """The bytes of an operand that a fusion reads: of one that it only slices or updates, that part."""
    parameter = next(
        i for i in inner.instructions.values() if i.opcode == "parameter" and int(i.operands[0]) == index
    )
    parts = 0.0
    for user in inner.instructions.values():
        if parameter.name not in user.operands:
            continue
        place = user.operands.index(parameter.name)
        if user.opcode == "fusion":
            parts += _read(module, module.computations[user.called["calls"]], place, operand)
        elif user.opcode in _SLICES and place == 0:
            parts += _in_hbm(user)
        elif user.opcode != "dynamic-update-slice" or place != 0:
            return _in_hbm(operand)
    return min(parts, _in_hbm(operand))


def _update(computation: Computation, instruction: Instruction) -> float:
    """The bytes that are written where an array is updated in its place; 0 for what is no such update."""
    while instruction.opcode == "bitcast":
        instruction = computation.instructions[instruction.operands[0]]
    if instruction.opcode != "dynamic-update-slice":
        return 0.0
    return _in_hbm(computation.instructions[instruction.operands[1]])


def _in_hbm(instruction: Instruction) -> float:
    return float(sum(array.bytes for array in instruction.arrays if array.in_hbm))
