# SPDX-License-Identifier: Apache-2.0
"""Comparison of the papers' tables with the models, and its program."""

import csv
import io
from pathlib import Path

import pytest
from refused_commands import assert_refused

from benchmarks import tables
from benchmarks.papers.sizes import TABLES, Row, Table
from lambdanet import command_line

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
    path = Path(__file__).parents[2] / "docs" / "results" / "tables.csv"
    documented = [
        row
        for row in csv.DictReader(path.read_text().splitlines())
        if row["table"] == number
    ]
    for line, row in zip(tables.compare_rows(number), documented, strict=True):
        cells = [cell for figure in line.figures for cell in figure.cells]
        assert list(row.values())[1:-4] == [line.row.label, *cells]
        expected = UNEQUAL.get((number, line.row.label), "equal")
        assert line.verdict in (expected, ""), line
        assert (
            line.verdict
            or line.row.note
            or not any(figure.printed for figure in line.figures)
        )
        assert line.row.note or expected == "equal"


def test_tables_as_csv(capsys, monkeypatch):
    small = Table(
        "small",
        (Row("a", "lambda_resnet_tiny", {"key_dim": 8}, 32, "0.9", note="x, y"),),
    )
    monkeypatch.setitem(tables.TABLES, "0", small)
    assert command_line.main(tables.COMMAND, ["0", "0", "--format=csv"]) == 0
    row, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row == second
    assert (row["model"], row["note"]) == ("lambda_resnet_tiny key_dim=8", "x, y")
    assert row["parameters (M), paper"] == "0.9"
    assert row["parameters (M), ours"] == "0.918"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["14"], "unknown table '14'"),
        (["9", "--format=html"], "unknown format 'html'; accepted: csv, markdown"),
    ],
)
def test_table_errors(words, message, capsys):
    assert_refused(command_line.main(tables.COMMAND, words), message, capsys)
