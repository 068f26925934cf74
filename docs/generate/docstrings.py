# SPDX-License-Identifier: Apache-2.0
"""Sphinx extension: reads docstrings as plain text; code is in single backticks or indented by four columns.

What reStructuredText would read as other markup is escaped.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ESCAPED = (
    (re.compile(r"(`[^`]*`)(?=\w)"), r"\1\\ "),  # `Group`s
    # [b, *map], |u|
    (
        re.compile(r"(`[^`]*`)|([*](?! )|[|]|(?<=\w)_(?!\w))"),
        lambda m: m[1] or f"\\{m[2]}",
    ),
)


def escape(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Rewrites the lines of a docstring in place."""
    escaped: list[str] = []
    in_code = False
    for line in lines:
        if line.startswith("    ") and escaped and not escaped[-1] and not in_code:
            escaped += ["::", ""]
            in_code = True
        elif line and not line.startswith("    "):
            in_code = False
        if not in_code and not line.lstrip().startswith((">>>", "...")):
            for pattern, replacement in ESCAPED:
                line = pattern.sub(replacement, line)
        escaped.append(line)
    lines[:] = escaped


def draw_dashes(app: Sphinx, doctree: nodes.document) -> None:
    """Replaces the two hyphens that Sphinx writes between a parameter and its description."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    app.connect("doctree-read", draw_dashes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
