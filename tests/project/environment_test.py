# SPDX-License-Identifier: Apache-2.0
"""The environment in which the tests run: the header of pytest, the user's flags, hidden instructions."""

import os
import subprocess
import sys
from importlib import metadata

import engines
import environment_header
import pytest
from source_tree import ROOT


def run(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_header_names_processor_and_versions_without_xdist():
    """And the hook for the number of workers does not need xdist."""
    arguments = ["-p", "no:xdist", "--collect-only", __file__]
    done = run(
        sys.executable, "-m", "pytest", *arguments, XLA_FLAGS="--xla_cpu_max_isa=AVX2"
    )
    assert done.returncode == 0, done.stdout
    for title in ("processor:", "instructions:", "versions: keras on "):
        assert f"\n{title}" in done.stdout
    assert f"numpy {metadata.version('numpy')}" in done.stdout
    assert "XLA_FLAGS=" in done.stdout and "--xla_cpu_max_isa=AVX2\n" in done.stdout


def test_flags_of_the_user_are_last(monkeypatch):
    """Once, also in the processes that such a process starts."""
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_cpu_max_isa=AVX2 --xla_backend_optimization_level=2"
    )
    for _ in range(2):
        flags = engines.xla_flags("--a_flag")
        assert flags.startswith("--xla_backend_optimization_level=0 ")
        assert flags.endswith(
            " --a_flag --xla_cpu_max_isa=AVX2 --xla_backend_optimization_level=2"
        )
        monkeypatch.setenv("XLA_FLAGS", flags)


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
    done = run(
        sys.executable,
        "tests/plain_cpu.py",
        sys.executable,
        "-c",
        program,
        LD_PRELOAD="",
    )
    assert done.returncode == 3, done.stderr
    assert "AVX2" in done.stdout.split() and "AVX512" not in done.stdout
