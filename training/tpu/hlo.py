# SPDX-License-Identifier: Apache-2.0
"""Reads the text of optimised HLO: computations, their instructions, and what refers to what."""

import dataclasses
import functools
import math
import re

_HEAD = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%(\S+) = ")
_OPERAND = re.compile(r"%([^\s,()]+)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\](?:\{([^{}]*)\})?")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"(calls|to_apply|body|condition|true_computation|false_computation)=%([^\s,{}()]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_PARENTHESIS = re.compile(r"[()]")


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array: its elements, shape and place.

    Attributes:
      bits: of an element.
      shape: its dimensions.
      bytes: that it takes, with the padding of its tiles.
      in_hbm: whether it lies in the device's main memory rather than on the chip.
    """

    bits: int
    shape: tuple[int, ...]
    bytes: int
    in_hbm: bool


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation.

    Attributes:
      name: without the percent sign.
      type: of the result, as text.
      opcode: such as "fusion".
      operands: the names of the instructions that it uses, or what stands in their place.
      attributes: the rest of the line.
      is_root: whether the computation returns it.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result: one, or those of a tuple."""
        return tuple(_array(*found.groups()) for found in _ARRAY.finditer(self.type))

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None where it gives none."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def op_name(self) -> str:
        """The TensorFlow operation that it comes from, such as "model/layer/MatMul"; empty if not told."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def called(self) -> dict[str, str]:
        """The computations that it refers to, by role: "calls", "body", "condition", "branch 0"."""
        named = {role: name for role, name in _CALLED.findall(self.attributes)}
        branches = _BRANCHES.search(self.attributes)
        names = _OPERAND.findall(branches[1]) if branches else []
        return named | {f"branch {index}": name for index, name in enumerate(names)}

    def attribute(self, name: str) -> str:
        """Returns an attribute's value without spaces or braces, such as `direction`; empty if not there."""
        found = re.search(rf"\b{name}=([^\s,{{}}]+)", self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A sequence of instructions, by name and in their order."""

    name: str
    instructions: dict[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction whose result it returns."""
        return next(i for i in self.instructions.values() if i.is_root)


@dataclasses.dataclass(frozen=True)
class Module:
    """The computations of a program, by name, and the name of the one it begins with."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Module:
    """Returns the computations of a program.

    Args:
      text: of an HLO module.

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
    end = _closing(line, begin) if line[begin] == "(" else line.index(" ", begin)
    opens = line.index("(", end)
    closes = _closing(line, opens)
    operands = _OPERAND.findall(line[opens:closes]) or [line[opens + 1 : closes - 1]]
    return Instruction(
        head[2], line[begin:end], line[end:opens].strip(), tuple(operands), line[closes:], bool(head[1])
    )


def _closing(line: str, opens: int) -> int:
    """Returns the place after the parenthesis that closes the one at `opens`."""
    depth = 0
    for found in _PARENTHESIS.finditer(line, opens):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    raise ValueError(f"no closing parenthesis in {line[:200]!r}")


@functools.lru_cache(maxsize=65536)
def _array(kind: str, sizes: str, layout: str | None) -> Array:
    """Returns an array by its type, such as ("bf16", "8,100", "1,0:T(8,128)(2,1)S(1)")."""
    shape = tuple(int(size.strip("<= ")) for size in sizes.split(",") if size.strip("<= "))
    digits = re.match(r"\D+(\d+)", kind)
    bits = 8 if kind == "pred" or not digits else int(digits[1])
    order, _, place = (layout or "").partition(":")
    padded = (
        [shape[int(axis)] for axis in order.split(",")] if order else list(reversed(shape))
    )  # minor first
    tile = re.search(r"T\(([\d,]+)\)", place)
    for axis, size in enumerate(reversed([int(size) for size in tile[1].split(",")] if tile else [])):
        if axis < len(padded):
            padded[axis] = -(-padded[axis] // size) * size
    space = re.search(r"S\((\d+)\)", place)
    return Array(bits, shape, math.prod(padded) * bits // 8, not space or space[1] == "0")
