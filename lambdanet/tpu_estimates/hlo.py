# SPDX-License-Identifier: Apache-2.0
"""Parses the text of optimized HLO into computations and instructions."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from lambdanet.backend.tensors import ceil_div

_HEAD = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%(\S+) = ")
_OPERAND = re.compile(r"%([^\s,()]+)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\](?:\{([^{}]*)\})?")
# Instead of the cycles that the compiler does not know.
_UNKNOWN_CYCLES = str(2**63 - 1)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(
    r"(calls|to_apply|body|condition|true_computation|false_computation)=%([^\s,{}()]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_PARENTHESIS = re.compile(r"[()]")


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array.

    Attributes:
      shape: the dimensions.
      bytes: the size, with the padding of tiles.
      in_hbm: whether the array is in HBM rather than on the chip.
    """

    shape: tuple[int, ...]
    bytes: int
    in_hbm: bool


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation: `%name = type opcode(operands), attributes`.

    Attributes:
      name: the name, without the percent sign.
      type: the type of the result, as text.
      opcode: the opcode, such as "fusion".
      operands: the names of the operands; the text in the parentheses if there are none, as of a constant.
      attributes: the rest of the line.
      is_root: whether it is the result of the computation.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result; several for a tuple."""
        return tuple(_array(*found.groups()) for found in _ARRAY.finditer(self.type))

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate, if there is one."""
        found = _CYCLES.search(self.attributes)
        if not found or found[1] == _UNKNOWN_CYCLES:
            return None
        return int(found[1])

    @property
    def op_name(self) -> str:
        """The TensorFlow operation that it comes from, such as "model/layer/MatMul"; empty if unknown."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def callees(self) -> dict[str, str]:
        """The computations that it refers to, by role: "calls", "body", "condition", "branch 0"."""
        by_role = dict(_CALLED.findall(self.attributes))
        branches = _BRANCHES.search(self.attributes)
        names = _OPERAND.findall(branches[1]) if branches else []
        return by_role | {f"branch {index}": name for index, name in enumerate(names)}

    def attribute(self, name: str) -> str:
        """Returns the value of an attribute without spaces or braces, such as `direction`, or else ""."""
        found = re.search(rf"\b{name}=([^\s,{{}}]+)", self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A sequence of instructions, by name and in order."""

    name: str
    instructions: dict[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction that computes the result."""
        return next(i for i in self.instructions.values() if i.is_root)

    def uses_of_parameter(self, index: int) -> Iterator[tuple[Instruction, int]]:
        """Yields the instructions with a parameter among their operands, and its position there."""
        parameter = next(
            i
            for i in self.instructions.values()
            if i.opcode == "parameter" and int(i.operands[0]) == index
        )
        for user in self.instructions.values():
            if parameter.name in user.operands:
                yield user, user.operands.index(parameter.name)


@dataclasses.dataclass(frozen=True)
class Module:
    """The computations of a program by name, and the name of the first to run."""

    computations: dict[str, Computation]
    entry: str

    def fused_computation(self, fusion: Instruction) -> Computation:
        """Returns the computation of a fusion."""
        return self.computations[fusion.callees["calls"]]


def parse(text: str) -> Module:
    """Returns the computations of a program.

    Args:
      text: an HLO module.

    Example:
      >>> parse(compiled.text).computations["main"].root.opcode
      'tuple'
    """
    computations: dict[str, Computation] = {}
    entry = ""
    current: dict[str, Instruction] = {}
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = {}
            computations[head[2]] = Computation(head[2], current)
            entry = head[2] if head[1] else entry
        elif instruction := _instruction(line):
            current[instruction.name] = instruction
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    head = _NAME.match(line)
    if not head:
        return None
    begin = head.end()
    end = _find_closing(line, begin) if line[begin] == "(" else line.index(" ", begin)
    opens = line.index("(", end)
    closes = _find_closing(line, opens)
    operands = _OPERAND.findall(line[opens:closes]) or [line[opens + 1 : closes - 1]]
    return Instruction(
        head[2],
        line[begin:end],
        line[end:opens].strip(),
        tuple(operands),
        line[closes:],
        bool(head[1]),
    )


def _find_closing(line: str, opens: int) -> int:
    """Returns the index after the parenthesis that closes the one at `opens`."""
    depth = 0
    for found in _PARENTHESIS.finditer(line, opens):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    raise ValueError(f"no closing parenthesis in {line[:200]!r}")


@functools.lru_cache(maxsize=65536)
def _array(kind: str, sizes: str, layout: str | None) -> Array:
    """Returns the array of a type such as ("bf16", "8,100", "1,0:T(8,128)(2,1)S(1)")."""
    shape = tuple(
        int(size.strip("<= ")) for size in sizes.split(",") if size.strip("<= ")
    )
    digits = re.match(r"\D+(\d+)", kind)
    bits = 8 if kind == "pred" or not digits else int(digits[1])
    order, _, tiling = (layout or "").partition(":")
    axes = (
        [int(axis) for axis in order.split(",")]
        if order
        else reversed(range(len(shape)))
    )
    padded = [shape[axis] for axis in axes]  # minor first
    tile = re.search(r"T\(([\d,]+)\)", tiling)
    for axis, size in enumerate(
        reversed([int(size) for size in tile[1].split(",")] if tile else [])
    ):
        if axis < len(padded):
            padded[axis] = ceil_div(padded[axis], size) * size
    space = re.search(r"S\((\d+)\)", tiling)
    return Array(shape, math.prod(padded) * bits // 8, not space or space[1] == "0")
