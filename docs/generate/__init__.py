# SPDX-License-Identifier: Apache-2.0
"""Sphinx extension: writes what the code and its commands determine, as parts of pages and as whole pages.

A page contains, for example,

    ```{generated} results.layers
    ```

and there the Markdown text that `generate.results.layers()` returns. Whole pages, one per model family,
command or package, are written before the sources are read.
"""

import importlib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxDirective

from generate import api, commands, explorer, models, notebooks

WRITERS = (api, commands, models)  # modules whose `pages` returns whole pages


class Generated(SphinxDirective):
    """Inserts the text that a function of this package returns.

    Sections in it become sections of the page, so nothing may come before the first one.
    """

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # the text may change without the page
        module, _, function = self.arguments[0].rpartition(".")
        text = getattr(importlib.import_module(f"{__name__}.{module}"), function)()
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def write_pages(app: Sphinx, config: Config) -> None:
    """Writes whole pages, notebooks and vendored scripts below the folder of the sources."""
    folder = Path(app.srcdir)
    for module in WRITERS:
        for name, text in module.pages().items():
            write(folder / f"{name}.md", text)
    write(folder / explorer.SCRIPT, explorer.plotting_library())
    for name, text in notebooks.notebooks(folder, app.tags.has("execute")).items():
        write(folder / name, text)


def write(path: Path, text: str) -> None:
    """Writes a file, unless it has this text already."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("generated", Generated)
    app.connect("config-inited", write_pages)
    app.connect("source-read", notebooks.link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
