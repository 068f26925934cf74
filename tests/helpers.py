# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by tests: programs in processes of their own."""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def program(name: str, *arguments: object) -> dict[str, Any]:
    """Returns the arguments of `subprocess.run` for a program in tests/programs.

    Args:
      name: the file name.
      *arguments: the command line arguments.
    """
    command = [sys.executable, str(ROOT / "tests" / "programs" / name), *map(str, arguments)]
    return {"args": command, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
