# SPDX-License-Identifier: Apache-2.0
"""The tutorials as notebooks, each with a link on its page.

Blocks of Python and of bash become cells, and so does a comment that a page does not show:

    <!-- cell
    CODE
    -->

The notebooks of `RUN_IN_COLAB` are in the repository, without outputs, and run all of their cells; the
others leave those of bash to the reader. With the tag `execute` of Sphinx the cells are run.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from sphinx.application import Sphinx

import lambdanet
from generate import repository

FOLDER = "_generated/notebooks"
COMMITTED = "notebooks"
RUN_IN_COLAB = ("finetune_pictures", "keras_3_on_tpu")
SKIP = "skip-execution"
HEADER = """---
jupyter:
  kernelspec: {name: python3, display_name: Python 3, language: python}
---
"""
INSTALL = """\
try:
    import google.colab
except ImportError:
    print("not in Colab: this runs with the lambdanet that is installed")
else:
    %pip install -q "lambdanet[train] @ {}\""""
# Commands that stay text in the notebooks of `RUN_IN_COLAB`: their first cell of code installs, and the
# variables of a shell end with its cell.
TEXT = ("pip install", "tensorboard", "export JAX_")
OWN_PICTURES = "my_pictures"  # commands with this folder wait for it

GENERATED = re.compile(
    r"<!-- notebooks\.\w+: begin -->.*?<!-- notebooks\.\w+: end -->\n", re.DOTALL
)
CELL = re.compile(r"^<!-- cell\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
BASH = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def notebooks(docs: Path, execute: bool) -> dict[str, str]:
    """Returns the file name and the text of a notebook per tutorial."""
    texts = {}
    for path in sorted((docs / "tutorials").glob("*.md")):
        notebook = _read(path)
        if execute:
            print(f"running the tutorial {path.name}", flush=True)
            _execute(notebook)
        texts[f"{FOLDER}/{path.stem}.ipynb"] = _write(notebook)
    return texts


def committed(docs: Path) -> dict[str, str]:
    """Returns the file name and the text of each notebook in the repository."""
    return {
        f"{COMMITTED}/{name}.ipynb": _write(_read(docs / "tutorials" / f"{name}.md"))
        for name in RUN_IN_COLAB
    }


def finetune_pictures() -> str:
    """Returns the button of this tutorial."""
    return _button("finetune_pictures")


def keras_3_on_tpu() -> str:
    """Returns the button of this tutorial."""
    return _button("keras_3_on_tpu")


def _button(name: str) -> str:
    address = repository.colab(f"docs/{COMMITTED}/{name}.ipynb")
    return f"[![Run in Colab](../figures/colab.svg)]({address})" if address else ""


def _read(path: Path) -> NotebookNode:
    """Returns the notebook of a tutorial, the same at each call."""
    runs_all = path.stem in RUN_IN_COLAB
    text = CELL.sub(
        r"```python\n\1```", GENERATED.sub("", path.read_text(encoding="utf-8"))
    )
    if runs_all:
        text = BASH.sub(_as_text, text)
    notebook = jupytext.reads(HEADER + text, fmt="md")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = repository.absolute(cell.source, "docs/tutorials")
        elif cell.source.startswith("%%bash") and not runs_all:
            cell.metadata.tags = [SKIP]
        elif OWN_PICTURES in cell.source:
            wait = f'test -d {OWN_PICTURES} || {{ echo "{OWN_PICTURES} is not there yet"; exit 0; }}'
            cell.source = cell.source.replace("%%bash\n", f"%%bash\n{wait}\n")
    if runs_all:
        page = repository.absolute(
            f"[docs/tutorials/{path.name}]({path.name})", "docs/tutorials"
        )
        notebook.cells[0].source += f"\n\nThis notebook is generated from {page}."
        notebook.cells.insert(1, new_code_cell(_install()))
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("lines_to_next_cell", None)
    return notebook


def _install() -> str:
    """Returns the cell that installs lambdanet in Colab."""
    if repository.address():
        return INSTALL.format(f"git+{repository.address()}")
    wheel = f"file:///content/lambdanet-{lambdanet.__version__}-py3-none-any.whl"
    hint = "# In Colab, first upload the wheel that `pip wheel --no-deps .` makes in a clone."
    return f"{hint}\n{INSTALL.format(wheel)}"


def _as_text(block: re.Match[str]) -> str:
    """Returns a block of bash in the form that jupytext leaves in the text, if it is no cell."""
    return (
        f"```console\n{block[1]}```"
        if any(word in block[1] for word in TEXT)
        else block[0]
    )


def _execute(notebook: NotebookNode) -> None:
    """Runs the cells in an empty folder, with the commands of this environment."""
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        options = {"skip_cells_with_tag": SKIP, "record_timing": False}
        client = NotebookClient(
            notebook, resources={"metadata": {"path": folder}}, **options
        )
        client.execute(env={**os.environ, "PATH": commands})


def _write(notebook: NotebookNode) -> str:
    return jupytext.writes(notebook, fmt="ipynb").rstrip() + "\n"


def link(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adds the link to the notebook at the end of a tutorial."""
    folder, _, name = docname.partition("/")
    if folder == "tutorials":
        source[0] += (
            f"\n\n{{download}}`This page as a notebook <../{FOLDER}/{name}.ipynb>`\n"
        )
