# SPDX-License-Identifier: Apache-2.0
"""Tests of `python -m benchmarks.device`: parts on this CPU, failures, and what the file keeps to itself."""

import contextlib
import json
import platform
import sys
from pathlib import Path

import pytest
from engines import ENGINES
from programs.small_model import plain_model

from benchmarks.device import __main__ as program
from benchmarks.device import exports, scrub, training
from benchmarks.interleaved import comparison, contender_process
from benchmarks.interleaved.cases import ModelCase, cases
from benchmarks.interleaved.contender_process import ContenderFailed, ContenderProcess
from lambdanet import command_line
from lambdanet.models import zoo


def try_device(folder, *words):
    """Returns the exit status and the rows of the command."""
    status = command_line.main(program.COMMAND, [f"--out={folder}", *words])
    return status, json.loads((folder / program.FILE).read_text())["rows"]


class ScriptedProcess:
    """A contender, or a check of two rows; lucidrains' library is missing, and a step crashes."""

    device = "a GPU"

    def __init__(self, python, name, threads, environment):
        self.name = name
        self.rows = [
            {"case": case, "passed": True, "ms": None, "figures": {}} for case in "ab"
        ]

    def about(self):
        return {"library": "script 1", "device": self.device, "counts_memory": True}

    def request(self, do, timeout, **arguments):
        if self.name == "peer/lucidrains":
            raise ContenderFailed("not installed: no module 'lambda_networks'")
        if self.name == "training/digits on jax":
            raise ContenderFailed("ended with status -11: reading /home/ada/step.txt")
        if do == "next_row":
            return {"row": self.rows.pop() if self.rows else None}
        return {"seconds": 0.2 if "jax" in self.name else 0.4, "bytes": None}

    def is_alive(self):
        return True

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    for module in (program, comparison):
        monkeypatch.setattr(module, "ContenderProcess", ScriptedProcess)
    monkeypatch.setattr(comparison, "SETTLE_SECONDS", 0)


def test_all_parts_on_a_gpu(scripted, tmp_path, capsys):
    status, rows = try_device(tmp_path)
    shown = capsys.readouterr()
    assert status == 1
    assert "rows failed: training/digits on jax" in shown.err
    assert "/home/ada" not in shown.out and " .../step.txt" in shown.out
    counts = dict.fromkeys(program.PARTS, 0)
    for row in rows:
        counts[row["part"]] += 1
    # Two maps, types and passes, of three contenders and a row of the missing one; three models.
    assert counts == {
        "exports": 4,
        "training": 5,
        "forms": 2,
        "layers": 8 * 3 + 1,
        "models": 3 * 4 * 3,
    }
    (missing,) = [row for row in rows if "lucidrains" in row["case"]]
    assert missing["passed"] is None
    for row in rows:
        if "times_as_fast_as_timm" in row["figures"]:
            expected = 2 if "jax" in row["case"] else 1
            assert row["figures"]["times_as_fast_as_timm"] == expected


def test_parts_left_out(scripted, tmp_path, monkeypatch):
    _, rows = try_device(tmp_path, "--minutes=0", "--parts=forms,models")
    assert {row["figures"]["reason"] for row in rows} == {"out of time"}
    monkeypatch.setattr(ScriptedProcess, "device", "CPU")
    _, rows = try_device(tmp_path)
    assert [row["part"] for row in rows if row["passed"] is None] == [
        "layers",
        "models",
    ]


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


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer/auto", "model/lambda_resnet_tiny@32"])
def test_contenders_on_torch(name):
    layers = cases(["8x8x16x1"], ["3"], ["forward", "both"], "bfloat16")
    models = [ModelCase(2, False), ModelCase(2, True, "bfloat16")]
    process = ContenderProcess(sys.executable, f"{name} on torch", 1, {})
    with contextlib.closing(process):
        assert process.about()["library"].startswith("torch ")
        for case in models if "model" in name else layers:
            assert process.request("build", 600, case=vars(case))["seconds"] > 0


def test_wrong_arguments_are_one_line(tmp_path, capsys):
    (tmp_path / program.FILE).write_text("mine")
    for words in (["--parts=forms,form"], []):
        assert command_line.main(program.COMMAND, [f"--out={tmp_path}", *words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "unknown part 'form'" in first and "did not write it" in second
    assert (tmp_path / program.FILE).read_text() == "mine"


def test_scrubbed_messages():
    home = Path.home()
    assert scrub(f"no file '{home}/secret/data.csv'") == "no file '.../data.csv'"
    assert scrub("cannot reach 10.1.2.3:8470") == "cannot reach ADDRESS:8470"
    assert scrub(f"{home.name} on {platform.node()}") == "USER on HOST"
    assert scrub("loss is nan") == "loss is nan"
