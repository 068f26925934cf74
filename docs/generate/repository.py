# SPDX-License-Identifier: Apache-2.0
"""Addresses in the public repository, whose own address is `Source` of `project_urls` in setup.cfg.

While setup.cfg has no such line, there is no public repository, and links to it are left out.
"""

import configparser
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GITHUB = "https://github.com/"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def address() -> str:
    """Returns the address of the repository, "" if it has none."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for line in config["metadata"].get("project_urls", "").splitlines():
        name, _, url = line.partition("=")
        if name.strip() == "Source":
            return url.strip()
    return ""


def absolute(text: str, folder: str) -> str:
    """Replaces the relative links and images of a text in Markdown from a folder of the repository.

    Without an address, the text of a link remains, and an image is left out.
    """

    def replace(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        if not address():
            return "" if image else label
        path = posixpath.normpath(posixpath.join(folder, target))
        return f"{image}[{label}]({address()}/{'raw' if image else 'blob'}/main/{path})"

    return LINK.sub(replace, text)


def badges() -> str:
    """Returns the badge of the tests and the link to the rendered documentation, for the README."""
    if not address():
        return ""
    tests = f"{address()}/actions/workflows/test.yml"
    owner, _, name = address().removeprefix(GITHUB).partition("/")
    return f"[![tests]({tests}/badge.svg)]({tests}) [documentation](https://{owner}.github.io/{name})"


def colab(path: str) -> str:
    """Returns the address at which Google Colab opens a notebook of the repository, "" if there is none."""
    if not address():
        return ""
    return f"{address().replace(GITHUB, 'https://colab.research.google.com/github/')}/blob/main/{path}"
