# SPDX-License-Identifier: Apache-2.0
"""Infers the trip counts of HLO loops by interpreting their scalar induction variables."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from lambdanet.tpu_estimates.hlo import Computation, Instruction, Module

MAX_TRIPS = 20_000  # the trip counts of longer loops are unknown

_ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "and": operator.and_,
    "maximum": max,
    "minimum": min,
    "multiply": operator.mul,
    "or": operator.or_,
    "subtract": operator.sub,
}
_IDENTITIES = ("bitcast", "convert", "copy", "reshape")

# The known integers of a tuple, by index.
Scalars = Mapping[int, int]


class Scope:
    """A computation and the known values of its parameters.

    Args:
      module: the program.
      computation: a computation of the program.
      arguments: the values of the parameters: an integer, a tuple as `Scalars`, or None if unknown.
    """

    def __init__(
        self, module: Module, computation: Computation, arguments: Mapping[int, Any]
    ):
        self.module = module
        self.computation = computation
        self._arguments = arguments
        self._values: dict[str, Any] = {}

    def enter(self, name: str, arguments: Mapping[int, Any]) -> "Scope":
        """Returns the scope of another computation of the program."""
        return Scope(self.module, self.module.computations[name], arguments)

    def value(self, name: str) -> Any:
        """Returns the value of an instruction: an integer, a tuple as `Scalars`, or None if unknown."""
        if name not in self._values:
            instruction = self.computation.instructions.get(name)
            self._values[name] = self._evaluate(instruction) if instruction else None
        return self._values[name]

    def result(self, name: str, arguments: Mapping[int, Any]) -> Any:
        """Returns the value of another computation's result."""
        inner = self.enter(name, arguments)
        return inner.value(inner.computation.root.name)

    def _evaluate(self, instruction: Instruction) -> Any:
        opcode = instruction.opcode
        operands = instruction.operands
        if opcode == "constant":
            return _integer(operands[0])
        if opcode == "parameter":
            return self._arguments.get(int(operands[0]))
        if opcode in _IDENTITIES:
            return self.value(operands[0])
        if opcode == "tuple":
            values = enumerate(map(self.value, operands))
            return {index: value for index, value in values if isinstance(value, int)}
        if opcode == "get-tuple-element":
            whole = self.value(operands[0])
            return (
                whole.get(int(instruction.attribute("index")))
                if isinstance(whole, dict)
                else None
            )
        numbers = [self.value(name) for name in operands]
        if opcode == "fusion":
            return self.result(instruction.callees["calls"], dict(enumerate(numbers)))
        if not all(isinstance(number, int) for number in numbers):
            return None
        if opcode == "compare":
            # Such as "LT", for `operator.lt`.
            direction = instruction.attribute("direction")
            return int(getattr(operator, direction.lower())(*numbers))
        return _ARITHMETIC[opcode](*numbers) if opcode in _ARITHMETIC else None


def count_trips(loop: Instruction, scope: Scope) -> tuple[int | None, Scalars]:
    """Runs the scalar part of a loop.

    Args:
      loop: a `while` instruction.
      scope: the scope of its computation.

    Returns:
      The trip count, None if it depends on unknown values; and the scalars that no iteration changes.
    """
    first = scope.value(loop.operands[0])
    state: Scalars = first if isinstance(first, dict) else {}
    constants = dict(state)
    for trips in range(MAX_TRIPS):
        proceed = scope.result(loop.callees["condition"], {0: state})
        if proceed is None:
            return None, _constants_of_loop(constants, state)
        if not proceed:
            return trips, constants
        after = scope.result(loop.callees["body"], {0: state})
        state = after if isinstance(after, dict) else {}
        constants = _constants_of_loop(constants, state)
    return None, constants


def _constants_of_loop(before: Scalars, after: Scalars) -> dict[int, int]:
    return {
        index: value for index, value in before.items() if after.get(index) == value
    }


def _integer(text: str) -> int | None:
    if text in ("true", "false"):
        return int(text == "true")
    try:
        return int(text)
    except ValueError:
        return None
