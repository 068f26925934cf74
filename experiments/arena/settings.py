# SPDX-License-Identifier: Apache-2.0
"""Setups of the arena: a task, an operator, and a setting such as `key_dim=8` that is not the usual one."""

import ast
import functools
from typing import Any, NamedTuple

from experiments.arena.tasks import TASKS, Task
from lambdanet.errors import check_known

OF_TASKS = ("pairs",)
OF_NETWORKS = ("parameters", "placement")


class Setup(NamedTuple):
    """A task, an operator and settings.

    Attributes:
      task_name, operator: their keys in `TASKS` and `OPERATORS`.
      settings: `NAME=VALUE`, or empty. The name is an argument of the task, `parameters` (their number),
        `placement` (a letter per mixer: C for a convolution, O for the operator), or an option of the
        operator.
    """

    task_name: str
    operator: str
    settings: str = ""

    @property
    def task(self) -> Task:
        """The task, with its settings."""
        return _task(self)

    @property
    def parameters(self) -> int:
        """The number of parameters of the network."""
        return int(self._values().get("parameters", self.task.parameters))

    @property
    def placement(self) -> str:
        """A letter per mixer, or empty where all are the operator."""
        return str(self._values().get("placement", ""))

    @property
    def options(self) -> dict[str, Any]:
        """The options of the operator."""
        return {
            k: v for k, v in self._values().items() if k not in OF_TASKS + OF_NETWORKS
        }

    def _values(self) -> dict[str, Any]:
        name, _, value = self.settings.partition("=")
        return {name: _literal(value)} if name else {}


@functools.cache
def _task(setup: Setup) -> Task:
    check_known("task", setup.task_name, tuple(TASKS))
    return TASKS[setup.task_name](
        **{k: v for k, v in setup._values().items() if k in OF_TASKS}
    )


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
