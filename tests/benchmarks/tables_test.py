# SPDX-License-Identifier: Apache-2.0
"""Comparison of the papers' tables with the models."""

import csv
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.papers.sizes import TABLES

# Every row whose figures are not equal. Those that differ by more than a rounding: no reading gives them.
UNEQUAL = {
    ("3", "Conv + linear attention (Chen et al. 2018)"): "parameters: within rounding",
    ("4", "Lambda layer (|k|=8)"): "memory: within rounding",
    ("8", "k=8 h=2 u=1"): "parameters: differs",
    ("8", "k=8 h=16 u=1"): "parameters: differs",
    ("8", "k=2 h=4 u=1"): "parameters: within rounding",
    ("8", "k=2 h=8 u=1"): "parameters: differs",
    ("8", "k=4 h=8 u=1"): "parameters: differs",
    ("8", "k=32 h=8 u=1"): "parameters: within rounding",
    ("9", "content and position"): "parameters: within rounding",
    ("12", "C-C-L-L"): "parameters: differs",
    ("17", "MobileNet-v2"): "FLOPs: differs",
    ("17", "MobileNet-v2 with 2 lightweight lambda blocks"): "FLOPs: differs",
    ("A2", "H3"): "parameters: differs",
}


@pytest.mark.parametrize(
    ("printed", "ours", "verdict"),
    [
        ("15.0", 14.95, "equal"),
        ("15.0", 14.949, "within rounding"),
        ("15.0", 15.1, "differs"),
        ("120", 122.8, "equal"),  # the last zero may stand for any digit
        ("34", 33.7, "equal"),
        ("0.95", 0.9597, "within rounding"),
    ],
)
def test_compare(printed, ours, verdict):
    assert tables.compare(printed, ours) == verdict


# Their networks take long to build.
WEEKLY = ("8", "10", "13", "15", "16")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[pytest.mark.weekly] if number in WEEKLY else [])
        for number in TABLES
    ],
)
def test_table(number):
    """Each figure is equal, or its row is listed above and has a note; the documentation has the figures."""
    path = Path(__file__).parents[2] / "docs/results/tables.csv"
    rows = csv.reader(path.read_text().splitlines())
    documented = [row for row in rows if row[0] == number]
    for line, row in zip(tables.compare_rows(number), documented, strict=True):
        cells = [cell for figure in line.figures for cell in figure.cells]
        assert row[1:-4] == [line.row.label, *cells]
        expected = UNEQUAL.get((number, line.row.label), "equal")
        assert line.verdict in (expected, ""), line
        assert (
            line.verdict
            or line.row.note
            or not any(figure.printed for figure in line.figures)
        )
        assert line.row.note or expected == "equal"
