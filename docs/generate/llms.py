# SPDX-License-Identifier: Apache-2.0
"""Writes llms.txt, the pages of the site with a line each, for programs that read."""

from pathlib import Path

from docutils.nodes import paragraph
from sphinx.application import Sphinx


def write(app: Sphinx, error: Exception | None) -> None:
    """Writes the file, each page with the first sentence of its text."""
    text = f"# {app.config.html_title}\n\n"
    for name, title in sorted(app.env.titles.items()):
        first = app.env.get_doctree(name).next_node(paragraph)
        line = " ".join(first.astext().split()) if first else ""
        text += f"- [{title.astext()}]({name}.html): {line.partition('. ')[0]}\n"
    Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")
