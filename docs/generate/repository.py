# SPDX-License-Identifier: Apache-2.0
"""Addresses in the public repository, which `project_urls` in setup.cfg names."""

import configparser
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?![a-z]+:|#)([^)\s]+)\)")


def address() -> str:
    """Returns the address of the repository."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["metadata"]["project_urls"].strip().splitlines()
    return {name.strip(): url.strip() for name, _, url in (line.partition("=") for line in lines)}["Source"]


def absolute(text: str, folder: str) -> str:
    """Replaces the relative links and images of a text in Markdown from a folder of the repository."""

    def replace(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        return f"{image}{label}{address()}/{'raw' if image else 'blob'}/main/{path})"

    return LINK.sub(replace, text)


def colab(path: str) -> str:
    """Returns the address at which Google Colab opens a notebook of the repository."""
    return f"{address().replace('https://github.com/', 'https://colab.research.google.com/github/')}/blob/main/{path}"
