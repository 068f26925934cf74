# SPDX-License-Identifier: Apache-2.0
"""Sphinx extension, and a command: writes what the code and its commands determine, as tables and as pages.

Tables are between markers in the README and in pages written by hand (`generate.tables`). Whole pages, one
per model family, command or package, are written before the sources are read. `make tables` writes the
tables, the pages of families and the notebooks for Colab, which are in the repository; the rest is for
Sphinx alone.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

# Of benchmarks/, which is not installed.
sys.path.append(str(Path(__file__).parents[2]))

from generate import (
    api,
    commands,
    examples,
    explorer,
    llms,
    models,
    notebooks,
    repository,
    tables,
)

WRITERS = (api, commands)  # modules whose `pages` returns whole pages


def write_pages(app: Sphinx, config: Config) -> None:
    """Writes tables, whole pages, notebooks and scripts below the folder of the sources."""
    folder = Path(app.srcdir)
    print("writing the tables and the pages of models", flush=True)
    write_committed(folder)
    print("writing the pages of modules and commands", flush=True)
    for module in WRITERS:
        _write_all(folder, module.pages())
    _write_all(folder, explorer.scripts())
    _write_all(folder, notebooks.notebooks(folder, app.tags.has("execute")))


def write_committed(folder: Path) -> None:
    """Writes what is in the repository: tables, pages of families, examples and for PyPI, two notebooks."""
    for path, text in committed(folder):
        _write(path, text)


def stale_pages(folder: Path, skipped: Sequence[str] = ("experiments",)) -> list[Path]:
    """Returns the files that `write_committed` would change.

    Args:
      folder, skipped: as in `committed`; by default without the table that needs TF Model Garden.
    """
    return [
        path
        for path, text in committed(folder, skipped)
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def committed(folder: Path, skipped: Sequence[str] = ()) -> Iterator[tuple[Path, str]]:
    """Yields the path and the text of each file with generated parts in the repository.

    Args:
      folder: the folder of the documentation.
      skipped: the modules of `generate` whose tables stay as they are.
    """
    pages = models.pages() | examples.pages(folder) | notebooks.committed(folder)
    for name, text in pages.items():
        yield folder / name, text
    readme = folder.parent / "README.md"
    for path in (readme, *sorted(folder.glob("*/*.md"))):
        text = tables.replace(path.read_text(encoding="utf-8"), skipped)
        yield path, text
        if path == readme:
            yield folder / "pypi.md", repository.absolute(text, "")


def _write_all(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    """Writes a file, unless it has this text already."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", write_pages)
    app.connect("source-read", notebooks.link)
    app.connect("build-finished", llms.write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
