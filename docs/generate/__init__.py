# SPDX-License-Identifier: Apache-2.0
"""Sphinx extension: writes the pages that the code and its commands determine, before they are read."""

from pathlib import Path

from sphinx.application import Sphinx

STATIC = "_generated/static"


def write_pages(app: Sphinx) -> None:
    """Writes the generated pages and files below the folder of the sources."""
    (Path(app.srcdir) / STATIC).mkdir(parents=True, exist_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
