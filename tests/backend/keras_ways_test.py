# SPDX-License-Identifier: Apache-2.0
"""Keras's own ways to export and adapt models: what keras_ways.csv says works, does."""

import csv
import subprocess
from pathlib import Path

import pytest
from helpers import ENGINES, program

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.weekly]

with Path(__file__).with_name("keras_ways.csv").open(encoding="utf-8") as lines:
    RECORDED = [tuple(row) for row in csv.reader(lines)][1:]


@pytest.mark.parametrize("engine", ENGINES)
def test_ways_of_keras_work_as_recorded(engine, monkeypatch):
    """Those that need a package that is not installed are not tried."""
    recorded = [row for row in RECORDED if row[1] == engine]
    ways = list(dict.fromkeys(way for way, *_ in recorded))
    for name, value in ENGINES[engine].items():
        monkeypatch.setenv(name, value)
    shown = subprocess.run(
        **program("keras_ways.py", *ways), capture_output=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    found = [tuple(row) for row in csv.reader(shown.stdout.splitlines())]
    tried = {way for way, *_ in found}
    assert found
    assert found == [row for row in recorded if row[0] in tried]
