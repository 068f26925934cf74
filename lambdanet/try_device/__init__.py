# SPDX-License-Identifier: Apache-2.0
"""The parts of `lambdanet try-device`: they try an accelerator, each in a process of its own (`__main__`).

A part is a function that takes an empty folder and returns rows. A row has a `case`; `passed`, which is None
where the part needs what is not installed; `ms`, the milliseconds of a call or step, or None; `figures`, by
name; and, for the file alone, whatever else it measured. On a CPU, all sizes are small.
"""

import getpass
import os
import re
import socket
from typing import Any

# Folders before the last name of an absolute path, of Linux or Windows.
_FOLDERS = re.compile(r"(?<![\w.)])(?:[A-Za-z]:)?[\\/](?:[^\s\\/'\":,;<>()]+[\\/])+")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")


def scrub(text: str) -> str:
    """Returns a message without folders, addresses, and the names of the user and of the machine.

    Example:
      >>> scrub("cannot read '/home/ada/data/train.csv'")
      "cannot read '.../train.csv'"
    """
    # Its name may have spaces.
    text = text.replace(f"{os.path.expanduser('~')}/", "/")
    text = _ADDRESS.sub("ADDRESS", _FOLDERS.sub(".../", text))
    names = {"USER": _user(), "HOST": socket.gethostname()}
    for word, name in names.items():
        if name:
            text = re.sub(rf"\b{re.escape(name)}\b", word, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        return ""


def not_installed(case: str, package: str) -> dict[str, Any]:
    """Returns the row of a part that needs a package."""
    figures = {"install": f"pip install '{package}'"}
    return {"case": case, "passed": None, "ms": None, "figures": figures}
