# SPDX-License-Identifier: Apache-2.0
"""Runs files of tests/programs, and programs in texts, in processes of their own.

A process that hangs ends with the test that started it (`times.HANGING`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from source_tree import ROOT


def program(name: str, *arguments: object) -> dict[str, Any]:
    """Returns the arguments of `subprocess.run` for a file in tests/programs and its command line."""
    file = ROOT / "tests/programs" / name
    command = [sys.executable, str(file), *map(str, arguments)]
    return {"args": command, "text": True, "env": dict(os.environ)}


def output_of(name: str, *arguments: object, **environment: str) -> str:
    """Returns what a file in tests/programs prints; asserts that it succeeds."""
    command = program(name, *arguments)
    command["env"] |= environment
    done = subprocess.run(**command, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def result_of(name: str, *arguments: object, **environment: str) -> Any:
    """Returns the JSON that a file in tests/programs prints last."""
    return json.loads(output_of(name, *arguments, **environment).splitlines()[-1])


def run_code(
    code: str, *words: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess:
    """Runs a program in a text, and returns what it printed and how it ended."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
