# SPDX-License-Identifier: Apache-2.0
"""Command line reference: a page per command, with the text of its help."""

import importlib
import pkgutil
import textwrap

from generate.pages import table
from lambdanet import cli, detection
from lambdanet.core.command_line import Command, Flag, usage


def pages() -> dict[str, str]:
    """Returns a page per command."""
    return {
        f"reference/commands/{_name(command)}.md": _page(command)
        for command in _commands()
    }


def commands() -> str:
    """Returns the table of commands."""
    rows = [[f"`{c.invocation}`", c.summary] for c in _commands()]
    return table(["command", "purpose"], rows)


def _commands() -> list[Command]:
    """Returns the commands of `lambdanet` and of the programs `python -m lambdanet.detection.NAME`."""
    names = [
        f"{detection.__name__}.{info.name}"
        for info in pkgutil.iter_modules(detection.__path__)
    ]
    programs = [importlib.import_module(name) for name in names]
    return [
        *cli.COMMANDS,
        *(program.COMMAND for program in programs if hasattr(program, "COMMAND")),
    ]


def _name(command: Command) -> str:
    return (
        f"detection_{command.name}"
        if command.module
        else command.name.replace(" ", "_")
    )


def _page(command: Command) -> str:
    line = textwrap.fill(
        usage(command), 90, subsequent_indent="    ", break_on_hyphens=False
    )
    examples, notes = "\n".join(command.examples), command.notes()
    parts = [
        f"# {command.invocation}",
        f"`{command.name}` {command.summary}.",
        f"```console\n{line}\n```",
        f"## Examples\n\n```console\n{examples}\n```",
    ]
    if command.options:
        parts.append("## Arguments and flags")
    for option in command.options:
        is_required = isinstance(option, Flag) and option.required
        parts.append(
            f"`{option}`{', required' if is_required else ''}\n: {option.help}"
        )
    if notes:
        parts.append(f"## Notes\n\n```text\n{notes}\n```")
    return "\n\n".join(parts) + "\n"
