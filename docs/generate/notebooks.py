# SPDX-License-Identifier: Apache-2.0
"""The tutorials as notebooks."""

from pathlib import Path

import jupytext

FOLDER = "_generated/notebooks"


def notebooks(docs: Path) -> dict[str, str]:
    """Returns a notebook per tutorial; blocks of Python become cells of code."""
    return {
        f"{FOLDER}/{path.stem}.ipynb": jupytext.writes(jupytext.read(path, fmt="md"), fmt="ipynb")
        for path in sorted((docs / "tutorials").glob("*.md"))
    }
