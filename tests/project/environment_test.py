# SPDX-License-Identifier: Apache-2.0
"""The environment in which `make test-plain-cpu` runs the tests: newer instructions are hidden."""

import os
import subprocess
import sys

import environment_header
import pytest
from source_tree import ROOT


@pytest.mark.skipif(
    "cpuid_fault" not in environment_header.processor_flags(),
    reason="cpuid cannot fault here",
)
def test_newer_instructions_are_hidden():
    """NumPy finds none, and a command keeps its exit status."""
    program = (
        "import faulthandler; faulthandler.enable()\n"  # it handles the same signal
        "from numpy._core._multiarray_umath import __cpu_features__ as found\n"
        "print(*(name for name, has in found.items() if has))\n"
        "raise SystemExit(3)"
    )
    command = [sys.executable, "tests/plain_cpu.py", sys.executable, "-c", program]
    environment = {**os.environ, "LD_PRELOAD": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert "AVX2" in done.stdout.split() and "AVX512" not in done.stdout
