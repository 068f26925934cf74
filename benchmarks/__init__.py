# SPDX-License-Identifier: Apache-2.0
"""Measurements for maintainers, which are not installed: `python -m benchmarks.startup` in a checkout.

Users measure with `lambdanet benchmark`.
"""

from collections.abc import Callable
from typing import Any

from absl import flags

from lambdanet.command_line import Arguments, Command, Flag, given_flags


def program(
    name: str,
    summary: str,
    run: Callable[..., Any],
    *accepted: Flag,
    models: bool = False,
) -> Command:
    """Returns the command `python -m benchmarks.NAME`, which calls a function with the flags that are given.

    Args:
      name: the name of the module.
      summary: what it does, one line.
      run: the function; its arguments are named like the flags.
      *accepted: the flags.
      models: whether positional arguments are the argument `models` of the function.
    """
    positional = Arguments(
        "[MODEL...]", "models (default: four of different families)", 0, float("inf")
    )

    def run_with_flags(values: flags.FlagValues, arguments: list[str]) -> None:
        run(
            **given_flags(values, accepted), **({"models": arguments} if models else {})
        )

    return Command(
        name,
        summary,
        run_with_flags,
        flags=accepted,
        arguments=positional if models else Arguments(),
        examples=(f"python -m {__name__}.{name}",),
        module=f"{__name__}.{name}",
        extra="dev",
    )
