# SPDX-License-Identifier: Apache-2.0
"""Measurements, which are not installed: `python -m benchmarks.layers` in a clone."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from lambdanet.core.command_line import Command, announce_slow_imports
from lambdanet.core.commands import command

# Some of the programs import Keras before they begin. In other processes, "-m" is replaced by then.
if sys.argv[0] == "-m":
    announce_slow_imports("benchmarks")


def program(
    name: str,
    function: Callable[..., Any],
    positional: str = "",
    examples: Sequence[str] = (),
) -> Command:
    """Returns the command `python -m NAME` that calls a function, as `signatures.command` does.

    Args:
      name: the name of the module.
      function: the function; its arguments are the flags.
      positional: the argument of the function that takes positional arguments.
      examples: command lines; default: the one without flags.
    """
    return command(
        function,
        name.rpartition(".")[2],
        positional,
        module=name,
        extra="dev",
        examples=tuple(examples) or (f"python -m {name}",),
    )
