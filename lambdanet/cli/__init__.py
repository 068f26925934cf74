# SPDX-License-Identifier: Apache-2.0
"""The command `lambdanet`: a thin front, which imports what a command needs when it runs.

Help and mistakes in flags therefore need no TensorFlow. The modules beside this one hold the commands as
data; `lambdanet.command_line` defines what a command is, and turns errors into one line and an exit status.
"""

import sys
from collections.abc import Sequence

import lambdanet
from lambdanet import command_line
from lambdanet.cli import benchmark, models, tpu_check, training
from lambdanet.command_line import HELP, Command, aligned, run
from lambdanet.errors import unknown

COMMANDS: tuple[Command, ...] = (
    *models.COMMANDS,
    *training.COMMANDS,
    *benchmark.COMMANDS,
    *tpu_check.COMMANDS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit status, as `command_line.exit_status` defines it.

    Args:
      argv: the words after `lambdanet`; None: those of this process.

    Example:
      >>> main(["table", "12", "--format=markdown"])
      0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return command_line.exit_status("lambdanet", lambda: _run(words))


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("help", *HELP):
        print(_overview())
    elif argv[0] == "--version":
        print(f"lambdanet {lambdanet.__version__}")
    else:
        run(_command(argv[0]), argv[1:])


def _command(name: str) -> Command:
    commands = {command.name: command for command in COMMANDS}
    if name not in commands:
        raise unknown("command", name, commands, see="`lambdanet --help`")
    return commands[name]


def _overview() -> str:
    rows = aligned([(command.name, command.summary) for command in COMMANDS])
    return (
        "lambdanet: lambda networks for TensorFlow and tf_keras\n\n"
        f"usage: lambdanet COMMAND [flags]\n\ncommands:\n{rows}\n\n"
        "`lambdanet COMMAND --help` explains a command, `lambdanet --version` prints the version."
    )
