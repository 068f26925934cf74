# SPDX-License-Identifier: Apache-2.0
"""Tests of `lambdanet try-device`: all parts on this CPU, failures, and what the file keeps to itself."""

import getpass
import json
import re
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from engines import ENGINES

from lambdanet import cli
from lambdanet.backend import device
from lambdanet.cli import try_device as command
from lambdanet.ops import kernels
from lambdanet.ops.position_term import Geometry, PositionTerm
from lambdanet.ops.products import Product
from lambdanet.try_device import __main__, rates, scrub, training

STEP = """HloModule step

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %y = f32[8]{0} copy(%x), backend_config={"estimated_cycles":"1500000"}
}
"""


def rows_of(parts, folder, monkeypatch):
    """Returns the exit status and the rows of a command with other parts."""
    monkeypatch.setattr(command, "PARTS", parts)
    status = cli.main(["try-device", f"--out={folder}"])
    return status, json.loads((folder / command.FILE).read_text())["rows"]


@pytest.mark.slow
@pytest.mark.weekly
def test_all_parts_pass_on_a_cpu(tmp_path):
    status = cli.main(["try-device", f"--out={tmp_path}"])
    report = json.loads((tmp_path / command.FILE).read_text())
    rows = report["rows"]
    failed = [row for row in rows if row["passed"] is False]
    assert status == 0 and not failed
    assert {row["part"] for row in rows} == set(command.PARTS)
    forms = [row for row in rows if "forms" in row]
    assert len(forms) >= 8  # maps, types and passes
    assert all(len(row["forms"]) > 2 for row in forms)
    steps = [row for row in rows if row["part"] == "training"]
    networks = ("digits", "lambda_resnet_50")
    assert [row["case"] for row in steps] == [
        f"{name}, {backend}" for backend in ("jax", "tensorflow") for name in networks
    ]
    for row in steps:
        assert row["figures"]["steps"] == training.STEPS and row["ms"] > 0


def run_in_this_process(program, **options):
    """Runs a part as the program of a part does, but without a process."""
    *_, function, folder = program
    __main__.main(function, Path(folder))
    return subprocess.CompletedProcess(program, 0)


@pytest.mark.slow
def test_a_part_that_fails_does_not_hide_the_others(
    tmp_path, monkeypatch, capsys, quick_graphs
):
    monkeypatch.setattr(subprocess, "run", run_in_this_process)
    parts = {
        "forms": (("tensorflow", "lambdanet.try_device.nowhere:nothing"),),
        "detection": (("tensorflow", "pathlib:Path.read_text"),),
        "training": (("tensorflow", "programs.try_other_parts:train_quickly"),),
        "export": (("tensorflow", "lambdanet.try_device.exports:compare_saved_model"),),
    }
    status, rows = rows_of(parts, tmp_path / "tried", monkeypatch)
    assert status == 1
    shown = capsys.readouterr()
    assert "2 of 4 rows failed: nothing on tensorflow; Path.read_text on" in shown.err
    assert all(f"\n{part} " in shown.out for part in parts)
    missing, unreadable, trained, export = rows
    assert "ModuleNotFoundError" in missing["figures"]["error"]
    assert "Is a directory: '.../" in unreadable["figures"]["error"]
    assert [row["passed"] for row in rows] == [False, False, True, True]
    assert trained["case"] == "digits, tensorflow" and trained["ms"] > 0
    assert trained["figures"]["steps"] == 2
    assert export["case"] == "SavedModel"
    report = json.loads((tmp_path / "tried" / command.FILE).read_text())
    assert report["versions"]["lambdanet"] and len(report["table"]) > len(rows)
    text = json.dumps(report)
    user = getpass.getuser()
    for name in (f"{Path.home()}/", "/tmp/", f"/{user}/", f'"{user}"'):
        assert name not in text
    # A word: the name of a temporary folder may have its letters by chance.
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


@pytest.mark.parametrize(
    ("line", "max_seconds", "end"),
    [
        ("kill -SEGV $$", 60, "ended by SIGSEGV; last line: reading .../step.txt"),
        ("exit 3", 60, "ended with status 3; last line: reading .../step.txt"),
        ("exec sleep 60", 0.1, "stopped after 0.1 s; last line: "),
    ],
)
def test_process_that_ends_early(line, max_seconds, end, tmp_path, monkeypatch):
    python = tmp_path / "python"  # is called with -m MODULE FUNCTION FOLDER
    python.write_text(f'#!/bin/sh\necho "reading $4/step.txt"\n{line}\n')
    python.chmod(0o755)
    monkeypatch.setattr(command.sys, "executable", str(python))
    monkeypatch.setattr(command, "MAX_SECONDS", max_seconds)
    parts = {"forms": (("jax", "lambdanet.try_device.forms:compare_forms"),)}
    status, rows = rows_of(parts, tmp_path / "tried", monkeypatch)
    assert status == 1 and len(rows) == 1
    assert rows[0]["figures"]["error"].startswith(end)


@pytest.mark.slow
@pytest.mark.weekly
def test_forms_of_a_tpu_on_the_cpu(tmp_path, monkeypatch):
    parts = {"forms": (("jax", "programs.try_other_parts:compare_tpu_forms"),)}
    status, rows = rows_of(parts, tmp_path, monkeypatch)
    assert status == 0
    found = set()
    for row in rows:
        found.update(form["form"].partition("(")[0] for form in row.get("forms", ()))
    assert found == {"BlockDiagonal", "PooledQueries", "TpuProduct"}


@pytest.mark.slow
def test_wrong_forms_fail_on_jax(tmp_path, monkeypatch):
    for name, value in ENGINES["jax"].items():
        monkeypatch.setenv(name, value)
    parts = {"forms": (("jax", "programs.try_other_parts:compare_wrong_forms"),)}
    status, rows = rows_of(parts, tmp_path, monkeypatch)
    assert status == 1
    *cases, first_rates, second_rates, trained = rows
    assert len(cases) == 2
    for row in cases:
        by_kind = {form["form"].partition("(")[0]: form for form in row["forms"]}
        right, larger, refused = map(by_kind.get, ("Product", "Larger", "Refused"))
        assert right["error"] < 0.03 and larger["error"] > 0.09
        assert "refuses '.../program.txt'" in refused["failure"]
        assert row["passed"] is False
        assert set(row["figures"]["wrong"].split("; ")) == {
            larger["form"],
            refused["form"],
        }
    for row in (first_rates, second_rates):
        assert row["case"].startswith("rates for device.py")
    assert trained["case"] == "digits, jax" and trained["passed"]
    # Nothing estimates the time of a CPU.
    assert trained["figures"]["estimate"] == "-"


def test_wrong_arguments_are_one_line(tmp_path, capsys):
    assert cli.main(["try-device", f"--out={tmp_path}", "--parts=forms,form"]) == 2
    assert "unknown part 'form'" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / command.FILE).write_text("mine")
    assert cli.main(["try-device", f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / command.FILE).read_text() == "mine"


def test_estimates_of_a_tpu():
    """A program of 1.5 million cycles takes a millisecond on a v5e; elsewhere nothing is estimated."""
    assert training.estimate_seconds(STEP, "TPU v5 lite") == pytest.approx(1e-3)
    assert training.estimate_seconds(STEP, "cpu") is None
    assert training.estimate_seconds("another form", "TPU v5 lite") is None
    assert set(training.CHIPS.values()) >= {"v3", "v5e", "v5p", "v6e", "tpu7x"}


def test_scrubbed_messages():
    home = Path.home()
    assert scrub(f"no file '{home}/secret/data.csv'") == "no file '.../data.csv'"
    assert scrub("cannot reach 10.1.2.3:8470") == "cannot reach ADDRESS:8470"
    assert scrub("loss is nan") == "loss is nan"
    assert scrub(f"{getpass.getuser()} on {socket.gethostname()}") == "USER on HOST"


def test_scrubbed_messages_without_a_home(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31)  # an account without a name
    assert scrub("no file '/data/secret/a.csv'") == "no file '.../a.csv'"


def test_fitted_rates_are_those_of_the_times():
    """Times that a device of other rates would need give these rates back, where a form depends on them."""
    speed = device.Speed(rate=2e12, elementwise_rate=3e10, bandwidth=5e10)
    timings = []
    for side in (14, 28, 56):
        shapes = ([2, side, side, 4, 16], [2, side, side, 32, 1], [23, 23, 16, 1])
        arrays = [np.zeros(shape, np.float32) for shape in shapes]
        sizes = PositionTerm(*arrays, Geometry(), None, False).sizes
        for query_first in (False, True):
            form = Product(query_first=query_first)
            seconds = form.seconds(sizes, speed)
            timings.append(rates.Timing(side, sizes, form, seconds))
    fitted = rates.fit(timings, kernels.KERNELS["GPU"].device.training)
    for timing in timings:
        estimate = timing.form.seconds(timing.sizes, fitted)
        assert estimate == pytest.approx(timing.seconds, rel=0.2)
