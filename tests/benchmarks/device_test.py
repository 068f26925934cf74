# SPDX-License-Identifier: Apache-2.0
"""Tests of `python -m benchmarks.device`: parts on this CPU, failures, and what the file keeps to itself."""

import json
import platform
from pathlib import Path

import pytest
from engines import ENGINES
from programs.small_model import plain_model

from benchmarks.device import __main__ as program
from benchmarks.device import exports, scrub, training
from benchmarks.interleaved import contender_process
from lambdanet.core import command_line
from lambdanet.models import zoo


def try_device(folder, *words):
    """Returns the exit status and the rows of the command."""
    status = command_line.main(program.COMMAND, [f"--out={folder}", *words])
    return status, json.loads((folder / program.FILE).read_text())["rows"]


@pytest.mark.slow
def test_wrong_forms_fail(tmp_path, monkeypatch, capsys):
    for name in ("JAX_PLATFORMS", "XLA_FLAGS"):
        monkeypatch.setenv(name, ENGINES["jax"][name])
    planted = f"import programs.wrong_forms\n{contender_process._PROGRAM}"
    monkeypatch.setattr(contender_process, "_PROGRAM", planted)
    status, rows = try_device(tmp_path, "--parts=forms")
    assert status == 1 and len(rows) == 2
    assert capsys.readouterr().out.count("FAILED") == 2
    for row in rows:
        by_kind = {form["form"].partition("(")[0]: form for form in row["forms"]}
        right, larger, refused = map(by_kind.get, ("Product", "Larger", "Refused"))
        assert right["error"] < 0.01 and larger["error"] > 0.09
        assert "refuses '.../program.txt'" in refused["failure"]
        wrong = row["figures"]["wrong"].split("; ")
        assert set(wrong) == {larger["form"], refused["form"]}


@pytest.mark.slow
def test_training_and_exports(monkeypatch):
    for kind in ("SavedModel", "LiteRT"):
        (row,) = exports.rows(f"exports/{kind}")
        assert row["passed"] and row["case"] == kind
    monkeypatch.setattr(training, "STEPS", 3)
    monkeypatch.setattr(zoo, "create_model", plain_model)
    (row,) = training.rows("training/digits")
    assert row["passed"] and row["ms"] > 0 and row["figures"]["steps"] == 3


def test_scrubbed_messages():
    home = Path.home()
    assert scrub(f"no file '{home}/secret/data.csv'") == "no file '.../data.csv'"
    assert scrub("cannot reach 10.1.2.3:8470") == "cannot reach ADDRESS:8470"
    assert scrub(f"{home.name} on {platform.node()}") == "USER on HOST"
    assert scrub("loss is nan") == "loss is nan"
