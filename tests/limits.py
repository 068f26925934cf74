# SPDX-License-Identifier: Apache-2.0
"""Compares the code with the limits in pyproject.toml, `tool.lambdanet`, as `make lint` does.

The limits are on the tokens of code of the library, of the documentation's programs and of the tests, on the
public names and on the flags. No statement may be dense (`density`). Above a cap is a warning; more than
`MARGIN` above it is an error: a repair never stops at a number.
"""

import importlib
import sys
import tomllib
from collections.abc import Iterable, Iterator

import count_tokens
import density
import source_tree
from source_tree import PACKAGES, ROOT

import lambdanet
from lambdanet import cli

# Tokens above a cap with which a change may be tested and reviewed.
MARGIN = 2_000
DETECTION = ("check", "evaluate", "export", "predict", "shapes", "train")


def main() -> str | None:
    """Prints the counts, and returns what is wrong, a line for each."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    limits = pyproject["tool"]["lambdanet"]
    problems = [
        *_check_tokens(limits["max_tokens"]),
        *_compare("public_names", limits["public_names"], lambdanet.__all__),
        *_check_flags(limits["flags"]),
        *_check_density(),
    ]
    return "\n".join(problems) or None


def _check_tokens(caps: dict[str, int]) -> Iterator[str]:
    counts = {
        "library": count_tokens.count_library(),
        "docs": count_tokens.count_folder("docs"),
        "tests": count_tokens.count_folder("tests"),
    }
    for part, count in counts.items():
        print(f"{part:10}{count:10,} of {caps[part]:,} tokens of code")
        yield from compare_tokens(part, count, caps[part])


def compare_tokens(part: str, count: int, cap: int) -> Iterator[str]:
    """Prints a warning above a cap, and yields an error above `MARGIN` more.

    Args:
      part: the part of the code, by its name in `max_tokens`.
      count: its tokens.
      cap: the number in `max_tokens`.
    """
    if count <= cap:
        return
    over = (
        f"{part} is {count - cap:,} tokens over its cap: delete code that nothing needs, or ask in an issue "
        "for a grant, which raises max_tokens in pyproject.toml"
    )
    if count - cap > MARGIN:
        yield over
    else:
        print(f"warning: {over}")


def _check_flags(frozen: dict[str, list[str]]) -> Iterator[str]:
    """Compares the flags of all commands with the frozen ones."""
    commands = list(cli.COMMANDS)
    for name in DETECTION:
        commands.append(importlib.import_module(f"lambdanet.detection.{name}").COMMAND)
    found = {command.invocation: command.flags for command in commands}
    yield from _compare("the commands of flags", frozen, found)
    for invocation in frozen.keys() & found.keys():
        flags = [flag.name for flag in found[invocation]]
        yield from _compare(f"flags of {invocation}", frozen[invocation], flags)


def _compare(what: str, frozen: Iterable[str], found: Iterable[str]) -> Iterator[str]:
    """Yields a line for names that are not in the frozen list, and one for those that are gone."""
    if added := sorted(set(found) - set(frozen)):
        yield f"not in {what}, in pyproject.toml: {', '.join(added)}"
    if gone := sorted(set(frozen) - set(found)):
        yield f"only in {what}, in pyproject.toml: {', '.join(gone)}"


def _check_density() -> Iterator[str]:
    for package in PACKAGES:
        for path in source_tree.files_of(package):
            for line, complaint in density.find(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}: {complaint}"


if __name__ == "__main__":
    sys.exit(main())
