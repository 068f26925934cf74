# SPDX-License-Identifier: Apache-2.0
"""Cycles, FLOPs and bytes of each operation of a compiled program, times the number of its runs.

Cycles are the compiler's estimates. FLOPs are twice the multiply-adds of convolutions and products, without
those on padding. Bytes are what an operation reads from and writes to HBM, with the padding of tiles.

    profile(text)
      hlo.parse            text -> Module of Computations of Instructions
      Profile.visit(entry) in order, with the number of runs so far:
        while                the body, times its trip count (trip_counts.count_trips)
        conditional          the branch with the most cycles
        call, async-start... the computation that it calls
        parameter, tuple...  nothing: no work
        everything else      a Cost of cycles, _flops and _bytes
"""

import dataclasses
import math
import re
from collections.abc import Callable

from lambdanet.tpu_estimates import hlo
from lambdanet.tpu_estimates.hlo import Computation, Instruction, Module
from lambdanet.tpu_estimates.trip_counts import Scope, count_trips

_NO_WORK = (
    "bitcast",
    "constant",
    "get-tuple-element",
    "parameter",
    "tuple",
    "copy-done",
    "async-update",
    "async-done",
    "call-update",
    "call-done",
    "after-all",
)
_SLICES = ("dynamic-slice", "gather", "slice")
_COLLECTIVE = re.compile(r"(all-to-all|(?:all|collective)-\w+|reduce-scatter)(-start)?")


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of an operation of the program, summed over all its runs.

    Attributes:
      name: the name of the instruction.
      opcode: the opcode, such as "fusion".
      op_name: the TensorFlow operation that the instruction comes from; empty if unknown.
      times: the number of runs.
      cycles: the compiler's estimate of the cycles.
      flops: the FLOPs of convolutions and products.
      bytes: the HBM traffic in bytes.
      exchanged: the bytes that a core sends to others, at least.
    """

    name: str
    opcode: str
    op_name: str
    times: int
    cycles: int
    flops: float
    bytes: float
    exchanged: float = 0.0

    @property
    def collective(self) -> str:
        """The kind of exchange between cores, such as "all-reduce"; empty for other operations."""
        found = _COLLECTIVE.fullmatch(self.opcode)
        return found[1] if found else ""


def profile(text: str) -> "Profile":
    """Returns the costs of an optimized HLO module; loops with unknown trip counts count once."""
    module = hlo.parse(text)
    costs = Profile()
    costs.visit(Scope(module, module.computations[module.entry], {}), 1)
    return costs


class Profile:
    """The operations of a program in the order in which they run, and the loops with unknown trip counts."""

    def __init__(self) -> None:
        self.operations: list[Cost] = []
        self.unbounded_loops: list[str] = []

    def visit(self, scope: Scope, times: int) -> None:
        """Adds the operations of a computation that runs `times` times."""
        for instruction in scope.computation.instructions.values():
            _VISITORS.get(instruction.opcode, Profile._operation)(
                self, scope, instruction, times
            )

    def _loop(self, scope: Scope, loop: Instruction, times: int) -> None:
        trips, constants = count_trips(loop, scope)
        if trips is None:
            self.unbounded_loops.append(loop.op_name or loop.name)
        self.visit(
            scope.enter(loop.callees["body"], {0: constants}),
            times * (1 if trips is None else trips),
        )

    def _conditional(self, scope: Scope, conditional: Instruction, times: int) -> None:
        branches = []
        for name in conditional.callees.values():
            branches.append(Profile())
            branches[-1].visit(scope.enter(name, {}), times)
        costliest = max(
            branches, key=lambda branch: sum(cost.cycles for cost in branch.operations)
        )
        self.operations += costliest.operations
        self.unbounded_loops += costliest.unbounded_loops

    def _call(self, scope: Scope, call: Instruction, times: int) -> None:
        if call.cycles is not None or not call.callees:
            self._operation(scope, call, times)
            return
        arguments = {
            index: scope.value(operand) for index, operand in enumerate(call.operands)
        }
        self.visit(scope.enter(next(iter(call.callees.values())), arguments), times)

    def _operation(self, scope: Scope, instruction: Instruction, times: int) -> None:
        if instruction.opcode in _NO_WORK or "AllocateBuffer" in instruction.attributes:
            return
        module = scope.module
        computation = scope.computation
        self.operations.append(
            Cost(
                instruction.name,
                instruction.opcode,
                _op_name(computation, instruction),
                times,
                times * (instruction.cycles or 0),
                times * _flops(module, computation, instruction),
                times * _bytes(module, computation, instruction),
                times * _exchanged(computation, instruction),
            )
        )


_VISITORS: dict[str, Callable[[Profile, Scope, Instruction, int], None]] = {
    "while": Profile._loop,
    "conditional": Profile._conditional,
    "call": Profile._call,
    "async-start": Profile._call,
    "call-start": Profile._call,
}


def _op_name(computation: Computation, instruction: Instruction) -> str:
    """The operation that an instruction comes from; for an unnamed copy, the one that it copies."""
    source: Instruction | None = instruction
    for _ in range(8):
        if source is None or source.op_name:
            break
        source = computation.instructions.get(source.operands[0])
    return source.op_name if source and source.opcode != "parameter" else ""


def _flops(module: Module, computation: Computation, instruction: Instruction) -> float:
    if instruction.opcode == "fusion":
        fused = module.fused_computation(instruction)
        return sum(
            _flops(module, fused, inner) for inner in fused.instructions.values()
        )
    if instruction.opcode == "convolution":
        return convolution_flops(
            instruction, *_operand_shapes(computation, instruction)
        )
    if instruction.opcode == "dot":
        left, _ = _operand_shapes(computation, instruction)
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        depth = (
            math.prod(left[int(axis)] for axis in axes[1].split(",") if axis)
            if axes
            else 1
        )
        return 2.0 * math.prod(instruction.arrays[0].shape) * depth
    return 0.0


def _operand_shapes(
    computation: Computation, instruction: Instruction
) -> list[tuple[int, ...]]:
    return [
        computation.instructions[name].arrays[0].shape
        for name in instruction.operands[:2]
    ]


def convolution_flops(
    instruction: Instruction, inputs: tuple[int, ...], kernel: tuple[int, ...]
) -> float:
    """Returns the FLOPs of a convolution, without those on padding.

    Args:
      instruction: the convolution, with the attributes `dim_labels` and `window`.
      inputs: the shape of the input.
      kernel: the shape of the kernel.
    """
    input_labels, kernel_labels, output_labels = re.split(
        "_|->", instruction.attribute("dim_labels")
    )
    outputs = instruction.arrays[0].shape
    window = _window(instruction.attributes)
    flops = 2.0 * outputs[output_labels.index("b")] * outputs[output_labels.index("f")]
    flops *= kernel[kernel_labels.index("i")]
    flops /= int(instruction.attribute("batch_group_count") or 1)
    for axis, label in enumerate(sorted(set(output_labels) - {"b", "f"})):
        settings = {name: values[axis] for name, values in window.items()}
        sizes = (inputs[input_labels.index(label)], outputs[output_labels.index(label)])
        flops *= _count_pairs(*sizes, **settings)
    return flops


def _window(attributes: str) -> dict[str, list[int]]:
    """Returns the settings of a window per axis, with the defaults of those that the text omits."""
    found = re.search(r"window=\{([^}]*)\}", attributes)
    texts = dict(setting.split("=") for setting in found[1].split()) if found else {}
    if not texts:
        return {}
    rank = len(texts["size"].split("x"))
    defaults = {
        "size": "1",
        "stride": "1",
        "lhs_dilate": "1",
        "rhs_dilate": "1",
        "pad": "0_0",
    }
    settings = {}
    for name, default in defaults.items():
        text = texts.get(name, "x".join([default] * rank))
        # The first number of the padding before and after an axis, such as "1_2".
        settings[name] = [int(axis.split("_")[0]) for axis in text.split("x")]
    return settings


def _count_pairs(
    inputs: int,
    outputs: int,
    size: int,
    stride: int,
    lhs_dilate: int,
    rhs_dilate: int,
    pad: int,
) -> int:
    """Returns the number of pairs of an output position and a kernel position that meet an input value."""
    extent = (inputs - 1) * lhs_dilate
    common = math.gcd(stride, lhs_dilate)
    period = lhs_dilate // common
    inverse = pow(stride // common, -1, period)
    count = 0
    # In constant time for each: in a batched product, size and outputs are the batch.
    for position in range(size):
        # The outputs o with 0 <= o * stride + shift <= extent, where lhs_dilate divides o * stride + shift:
        # every `period`-th one, if any.
        shift = position * rhs_dilate - pad
        if shift % common == 0:
            first = max(0, -(shift // stride))
            last = min(outputs - 1, (extent - shift) // stride)
            offset = -shift // common * inverse
            before = (first - 1 - offset) // period
            count += max(0, (last - offset) // period - before)
    return count


def _bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    """The HBM traffic of an instruction; of arrays that it slices or updates in place, only those parts."""
    # Its result lists the source and the destination.
    if instruction.opcode.endswith("-start"):
        return _in_hbm(instruction)
    fused = (
        module.fused_computation(instruction)
        if instruction.opcode == "fusion"
        else None
    )
    update = _update(fused, fused.root) if fused else _update(computation, instruction)
    total = update or _in_hbm(instruction)
    for index, name in enumerate(instruction.operands):
        operand = computation.instructions.get(name)
        if operand is None or (update and index == 0 and fused is None):
            continue
        total += _read(module, fused, index, operand) if fused else _in_hbm(operand)
    return total


def _read(
    module: Module, fused: Computation, index: int, operand: Instruction
) -> float:
    """The bytes that a fusion reads of its operand number `index`."""
    parts = 0.0
    for user, position in fused.uses_of_parameter(index):
        if user.opcode == "fusion":
            parts += _read(module, module.fused_computation(user), position, operand)
        elif position == 0 and user.opcode in _SLICES:
            parts += _in_hbm(user)
        elif position != 0 or user.opcode != "dynamic-update-slice":
            return _in_hbm(operand)  # all of it
    return min(parts, _in_hbm(operand))


def _update(computation: Computation, instruction: Instruction) -> float:
    """The bytes that an in-place update writes; 0 for other instructions."""
    while instruction.opcode == "bitcast":
        instruction = computation.instructions[instruction.operands[0]]
    if instruction.opcode != "dynamic-update-slice":
        return 0.0
    return _in_hbm(computation.instructions[instruction.operands[1]])


def _exchanged(computation: Computation, instruction: Instruction) -> float:
    """The bytes that a core sends: of a sum twice its size, first the parts and then their sums."""
    kind = _COLLECTIVE.fullmatch(instruction.opcode)
    if not kind:
        return 0.0
    inputs = 0
    for name in instruction.operands:
        if name in computation.instructions:
            inputs += sum(a.bytes for a in computation.instructions[name].arrays)
    outputs = sum(array.bytes for array in instruction.arrays)
    if kind[1] == "all-reduce":
        return 2.0 * inputs
    return float(outputs - inputs if kind[2] else max(inputs, outputs))


def _in_hbm(instruction: Instruction) -> float:
    return float(sum(array.bytes for array in instruction.arrays if array.in_hbm))
