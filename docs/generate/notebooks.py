# SPDX-License-Identifier: Apache-2.0
"""The tutorials as notebooks, each with a link on its page.

Blocks of Python and of bash become cells. With the tag `execute` of Sphinx the cells of Python are run.
"""

import tempfile
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode
from sphinx.application import Sphinx

FOLDER = "_generated/notebooks"
SKIP = "skip-execution"
HEADER = """---
jupyter:
  kernelspec: {name: python3, display_name: Python 3, language: python}
---
"""


def notebooks(docs: Path, execute: bool) -> dict[str, str]:
    """Returns the file name and the text of a notebook per tutorial."""
    texts = {}
    for path in sorted((docs / "tutorials").glob("*.md")):
        notebook = _read(path)
        if execute:
            with tempfile.TemporaryDirectory() as folder:
                options = {"skip_cells_with_tag": SKIP, "record_timing": False}
                NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options).execute()
        texts[f"{FOLDER}/{path.stem}.ipynb"] = jupytext.writes(notebook, fmt="ipynb")
    return texts


def _read(path: Path) -> NotebookNode:
    notebook = jupytext.reads(HEADER + path.read_text(encoding="utf-8"), fmt="md")
    for cell in notebook.cells:
        if cell.source.startswith("%%bash"):
            cell.metadata.tags = [SKIP]
    return notebook


def link(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds the link to the notebook at the end of a tutorial."""
    folder, _, name = docname.partition("/")
    if folder == "tutorials":
        source[0] += f"\n\n{{download}}`This page as a notebook <../{FOLDER}/{name}.ipynb>`\n"
