# SPDX-License-Identifier: Apache-2.0
"""How often the loops of a program run, found by running what they count with."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from lambdanet.training.tpu.hlo import Computation, Instruction, Module

LONGEST = 20_000  # turns, after which a loop is taken to be of unknown length

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "GE": operator.ge,
    "GT": operator.gt,
    "LE": operator.le,
    "LT": operator.lt,
    "NE": operator.ne,
}
_ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "and": operator.and_,
    "maximum": max,
    "minimum": min,
    "multiply": operator.mul,
    "or": operator.or_,
    "subtract": operator.sub,
}
_SAME = ("bitcast", "convert", "copy", "reshape")

# The scalars of a tuple that are known, by their place; a value that is not known is None.
Scalars = Mapping[int, int]


class Scope:
    """A computation together with the scalars that it is called with, evaluated as far as they are known.

    Args:
      module: the program.
      computation: of it.
      arguments: for each parameter its value: an integer, a tuple as `Scalars`, or None.
    """

    def __init__(self, module: Module, computation: Computation, arguments: Mapping[int, Any]):
        self._module, self._computation, self._arguments = module, computation, arguments
        self._values: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """Returns an integer, a tuple as `Scalars`, or None where it depends on what is not known."""
        if name not in self._values:
            instruction = self._computation.instructions.get(name)
            self._values[name] = self._evaluate(instruction) if instruction else None
        return self._values[name]

    def _evaluate(self, instruction: Instruction) -> Any:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "constant":
            return _integer(operands[0])
        if opcode == "parameter":
            return self._arguments.get(int(operands[0]))
        if opcode in _SAME:
            return self.value(operands[0])
        if opcode == "tuple":
            scalars = {index: self.value(name) for index, name in enumerate(operands)}
            return {index: value for index, value in scalars.items() if isinstance(value, int)}
        if opcode == "get-tuple-element":
            whole = self.value(operands[0])
            return whole.get(int(instruction.attribute("index"))) if isinstance(whole, dict) else None
        if opcode == "fusion":
            inner = self._module.computations[instruction.called["calls"]]
            given = {index: self.value(name) for index, name in enumerate(operands)}
            return Scope(self._module, inner, given).value(inner.root.name)
        numbers = [self.value(name) for name in operands]
        if not all(isinstance(number, int) for number in numbers):
            return None
        if opcode == "compare":
            return int(_COMPARISONS[instruction.attribute("direction")](*numbers))
        return _ARITHMETIC[opcode](*numbers) if opcode in _ARITHMETIC else None


def count_turns(module: Module, loop: Instruction, scope: Scope) -> tuple[int | None, Scalars]:
    """Returns how often a loop runs, and the scalars that are the same in each of its turns.

    Args:
      module: the program.
      loop: a `while` instruction of it.
      scope: of the computation that it stands in.

    Returns:
      the number of turns, None where it depends on what is computed; and the scalars.
    """
    condition, body = (module.computations[loop.called[role]] for role in ("condition", "body"))
    first = scope.value(loop.operands[0])
    state: Scalars = first if isinstance(first, dict) else {}
    kept = dict(state)
    turns = 0
    while turns < LONGEST:
        goes_on = Scope(module, condition, {0: state}).value(condition.root.name)
        if goes_on is None:
            return None, _unchanged(kept, state)
        if not goes_on:
            return turns, kept
        after = Scope(module, body, {0: state}).value(body.root.name)
        state = after if isinstance(after, dict) else {}
        kept = _unchanged(kept, state)
        turns += 1
    return None, kept


def _unchanged(before: Scalars, after: Scalars) -> dict[int, int]:
    return {index: value for index, value in before.items() if after.get(index) == value}


def _integer(text: str) -> int | None:
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text)
    except ValueError:
        return None
