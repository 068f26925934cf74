# SPDX-License-Identifier: Apache-2.0
"""The checks of `python -m benchmarks.device`, each in a process of its own, and their rows.

The function `rows` of a module yields the rows for a contender's name. A row has a `case`; `passed`, which is
None for what is left out; `ms`, the milliseconds of a call or step, or None; `figures`, by name; and, for the
file alone, whatever else was measured. On a CPU, all sizes are small.
"""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Folders before the last name of an absolute path, of Linux or Windows.
_FOLDERS = re.compile(r"(?<![\w.)])(?:[A-Za-z]:)?[\\/](?:[^\s\\/'\":,;<>()]+[\\/])+")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")


def make_row(
    case: str, passed: bool | None, ms: float | None, figures: Mapping[str, Any]
) -> Row:
    """Returns a row of the table; see the module."""
    return {"case": case, "passed": passed, "ms": ms, "figures": dict(figures)}


def scrub(text: str) -> str:
    """Returns a message without folders, addresses, and the names of the user and of the machine.

    Example:
      >>> scrub("cannot read '/home/ada/data/train.csv'")
      "cannot read '.../train.csv'"
    """
    home = os.path.expanduser("~")
    text = text.replace(f"{home}/", "/")  # its name may have spaces
    text = _ADDRESS.sub("ADDRESS", _FOLDERS.sub(".../", text))
    for word, name in {"USER": Path(home).name, "HOST": platform.node()}.items():
        if name:
            text = re.sub(rf"\b{re.escape(name)}\b", word, text)
    return text
