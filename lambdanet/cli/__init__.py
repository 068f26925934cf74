# SPDX-License-Identifier: Apache-2.0
"""The command `lambdanet`.

The modules of this package declare the commands; `lambdanet.core.command_line` parses and runs them. A
command imports its dependencies when it runs, so help and wrong flags do not start TensorFlow.
"""

import sys
from collections.abc import Sequence

import lambdanet
from lambdanet.cli import (
    exported,
    models,
    tpu_check,
    training,
)
from lambdanet.core import command_line
from lambdanet.core.command_line import HELP, Command, run_command
from lambdanet.core.errors import check_known
from lambdanet.core.text_table import align_columns

COMMANDS: tuple[Command, ...] = (
    *models.COMMANDS,
    *training.COMMANDS,
    *exported.COMMANDS,
    *tpu_check.COMMANDS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit status; see `command_line.exit_status`.

    Args:
      argv: the arguments after `lambdanet`; default: this process's.

    Example:
      >>> main(["list", "mobilenet*"])
      model                pixels  source ...
      mobilenet_v2            224  Table 17 ...
      0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return command_line.exit_status("lambdanet", lambda: _run(arguments))


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("help", *HELP):
        print(_overview())
    elif argv[0] == "--version":
        print(f"lambdanet {lambdanet.__version__}")
    else:
        run_command(_command(argv[0]), argv[1:])


def _command(name: str) -> Command:
    by_name = {command.name: command for command in COMMANDS}
    check_known("command", name, by_name, see="`lambdanet --help`")
    return by_name[name]


def _overview() -> str:
    rows = align_columns([(command.name, command.summary) for command in COMMANDS])
    return (
        "lambdanet: LambdaNetworks for Keras on TensorFlow, JAX and torch\n\n"
        f"usage: lambdanet COMMAND [flags]\n\ncommands:\n{rows}\n\n"
        "`lambdanet COMMAND --help` explains a command, `lambdanet --version` prints the version."
    )
