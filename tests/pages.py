# SPDX-License-Identifier: Apache-2.0
"""Finds the commands on the pages of the documentation."""

import configparser
import re
import shlex

from programs.run_page import BLOCK
from source_tree import ROOT

SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
WRITTEN = ("docs/*.md", "docs/*/*.md")  # generated pages are deeper
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for name in WRITTEN
    for path in ROOT.glob(name)
}
PAGES["README.md"] = (ROOT / "README.md").read_text()

SHELL = ("", "bash", "console")
COMMAND = re.compile(
    r"\s*(?:until )?(lambdanet|python -m (?:lambdanet|benchmarks)\.[.\w]+)(?: (.*))?"
)


def lines_of(text: str) -> list[str]:
    """Returns the lines of the shell blocks of a page; a line that goes on after a backslash is one."""
    blocks = (
        block.replace("\\\n", " ")
        for language, block in BLOCK.findall(text)
        if language in SHELL
    )
    return [line for block in blocks for line in block.splitlines()]


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Returns the command lines of lambdanet on a page: the command, and its arguments."""
    found = []
    for match in filter(None, map(COMMAND.match, lines_of(text))):
        program = match[1]
        words = shlex.split(match[2] or "", comments=True)
        if program == "lambdanet":
            program = f"{program} {words.pop(0)}"
        end = next(
            (i for i, word in enumerate(words) if word in ("|", "||", "&&", ">", ";")),
            None,
        )
        found.append((program, words[:end]))
    return found
