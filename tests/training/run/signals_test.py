# SPDX-License-Identifier: Apache-2.0
"""Signals while the main thread is in one long operation, as where the first step compiles."""

import signal
import subprocess

import pytest
from processes import program


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")]
)
def test_signals_are_answered_at_once(number, name):
    process = subprocess.Popen(
        **program("stop_while_compiling.py"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == "compiling\n"
        process.send_signal(number)
        assert process.stderr.readline() == (
            f"stopping after this step, which is saved first; {name} again ends at once\n"
        )
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert process.stderr.read() == ""
