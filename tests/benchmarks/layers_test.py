# SPDX-License-Identifier: Apache-2.0
"""Tests of the layer benchmark: cases, turns, failing processes, memory and tables."""

import contextlib
import csv
import sys
from itertools import product
from unittest import mock

import pytest
import tensorflow as tf
from processes import output_of, run_code
from refusals import refused
from refused_commands import assert_refused

from benchmarks import layers, models
from benchmarks.interleaved import comparison, memory, report
from benchmarks.interleaved.cases import PEER_PACKAGES, Case, cases
from benchmarks.interleaved.contender_process import (
    ContenderFailed,
    ContenderProcess,
)
from benchmarks.interleaved.results import Measurement
from lambdanet import command_line

SMALL = Case(4, 6, 16, 2, 3, backward=True)


def rows_of(times, backward=True, **fields):
    """Returns measurements of one sample each, in ms; the first is the reference."""
    case = Case(4, 6, 16, 2, 3, backward)
    rows = [
        Measurement(case, name, seconds=[ms / 1000], **fields)
        for name, ms in times.items()
    ]
    for row in rows:
        row.reference = rows[0]
    return rows


# Cases and contenders.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"maps": ["7x7x512"]},
            "map must be HEIGHTxWIDTHxCHANNELSxBATCH, such as 14x14x256x8, got '7x7",
        ),
        ({"maps": ["7x7x12x1"]}, "channels of map '7x7x12x1' must be a multiple of 8"),
        ({"scopes": ["22"]}, "scope must be an odd number such as 23, or global"),
        ({"passes": ["backward"]}, "unknown pass 'backward'; did you mean forward"),
        ({"dtype": "float64"}, "unknown dtype 'float64'; did you mean"),
        ({"contenders": ["position/ato"]}, "did you mean position/auto"),
        ({"contenders": ["peer/timm"]}, "is from another library and needs --peers"),
        ({"repeats": 0}, "repeats must be a positive integer, got 0"),
        ({"max_seconds": 0.0}, "max_seconds must be a number above 0, got 0.0"),
        ({"peers": True, "peers_python": "/no"}, "peers_python must be the path of a "),
        ({"out": "/proc/none"}, "/proc/none' cannot be written"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(arguments, message, capsys):
    with refused(message):
        layers.benchmark_layers(**arguments)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("module", "words"),
    [(layers, []), (models, ["resnet_50"])],
    ids=["layers", "models"],
)
def test_files_of_the_user_are_not_replaced(module, words, tmp_path, capsys):
    for name in ("layers.csv", "models.csv"):
        (tmp_path / name).write_text("model,mine\n")
    status = command_line.main(module.COMMAND, [*words, f"--out={tmp_path}"])
    message = "csv' exists, and this command did not write it"
    assert assert_refused(status, message, capsys) == ""


# Turns.


class ScriptedProcess:
    """A fake process with fixed times, on a machine that becomes slower with every call."""

    log: list[tuple[str, str]] = []
    seconds = {"quick": 0.01, "slow": 0.02}
    failures: dict[tuple[str, str], Exception] = {}

    def __init__(self, python, name, threads, environment):
        self._name = name
        self._alive = True

    def about(self):
        return {"library": "script 1.0", "device": "paper", "counts_memory": True}

    def request(self, do, timeout, **arguments):
        self.log.append((self._name, do))
        failure = self.failures.get((self._name, do))
        if failure:
            self._alive = "stopped" not in str(failure)
            raise failure
        if do == "memory":
            return {"bytes": 2**20}
        return {"seconds": self.seconds[self._name] * 1.01 ** len(self.log)}

    def is_alive(self):
        return self._alive

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(ScriptedProcess, "log", [])
    monkeypatch.setattr(ScriptedProcess, "failures", {})
    monkeypatch.setattr(comparison, "ContenderProcess", ScriptedProcess)
    monkeypatch.setattr(comparison, "SETTLE_SECONDS", 0)
    return ScriptedProcess


def run_script(budget, *todo):
    with comparison.Comparison(
        {"quick": "python", "slow": "python"}, budget
    ) as running:
        return [
            row
            for case in todo
            for row in running.run(case, ["quick", "slow"], "quick")
        ]


def test_turns_cancel_a_drift_of_the_machine(scripted):
    quick, slow = run_script(comparison.Budget(5, 60.0, 1), SMALL)
    turns = [name for name, do in scripted.log[4:] if do == "time"]
    assert turns == ["quick", "slow", "slow", "quick"] * 2 + ["quick", "slow"]
    assert len(quick.seconds) == len(slow.seconds) == 5
    assert quick.seconds[-1] > 1.05 * quick.seconds[0]
    assert quick.speed() == 1
    assert slow.speed() == pytest.approx(0.5, rel=0.02)
    assert (slow.mebibytes(), slow.library, slow.note) == (1, "script 1.0", "")


def test_slow_contender_has_fewer_turns(scripted, monkeypatch):
    monkeypatch.setattr(scripted, "seconds", {"quick": 0.001, "slow": 0.3})
    quick, slow = run_script(comparison.Budget(8, 1.3, 1), SMALL)
    assert len(quick.seconds) == 8
    assert 3 <= len(slow.seconds) < 8
    assert f"{len(slow.seconds)} of 8 repeats: a call takes 0.3" in slow.note


def test_stopped_contender_is_skipped_on_the_same_map(scripted):
    stopped = "stopped after 60 s"
    scripted.failures["slow", "build"] = ContenderFailed(stopped)
    forward, wider = Case(4, 6, 16, 2, 3, False), Case(4, 8, 16, 2, 3, False)
    rows = run_script(comparison.Budget(3, 10.0, 1), forward, SMALL, wider)
    slow = [row for row in rows if row.contender == "slow"]
    skipped = "skipped: the pass forward did not finish"
    assert [row.note for row in slow] == [stopped, skipped, stopped]
    assert all((row.seconds, row.speed()) == ([], None) for row in slow)
    assert all(len(row.seconds) == 3 for row in rows if row.contender == "quick")


# Processes.


@pytest.mark.slow
def test_process_survives_failing_case_and_ends_at_limit():
    worker = ContenderProcess(sys.executable, "position/einsum", 1, {})
    with contextlib.closing(worker):
        assert worker.about()["library"] == f"tensorflow {tf.__version__}"
        with pytest.raises(ContenderFailed, match="InvalidArgument|Error"):
            worker.request("build", 600, case={**vars(SMALL), "dtype": "complex"})
        assert worker.is_alive()
        assert worker.request("build", 600, case=vars(SMALL))["seconds"] > 0
        assert worker.request("time", 600, calls=3, warm=True)["seconds"] > 0
        with pytest.raises(ContenderFailed, match="stopped after 0 s"):
            worker.request("time", 0.01, calls=10**9, warm=False)
        assert not worker.is_alive()


@pytest.mark.peers
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            "raise ModuleNotFoundError('', name='lambda_networks')",
            "not installed: no module 'lambda_networks'; "
            "pip install torch lambda-networks",
        ),
        ("import os; os._exit(3)", "ended with status 3"),
    ],
)
def test_process_that_does_not_start_gives_the_reason(tmp_path, spoil, message):
    (tmp_path / "lambda_networks.py").write_text(spoil)
    worker = ContenderProcess(
        sys.executable, "peer/lucidrains", 1, {"PYTHONPATH": str(tmp_path)}
    )
    for _ in range(2):
        with pytest.raises(ContenderFailed) as failure:
            worker.request("build", 600, case=vars(SMALL))
        assert str(failure.value) == message
    worker.close()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "peer/lucidrains",
        pytest.param("peer/timm", marks=pytest.mark.weekly),
        pytest.param("peer/kecam_halo", marks=pytest.mark.weekly),
    ],
)
def test_peer_runs_or_names_the_missing_package(name):
    worker = ContenderProcess(sys.executable, name, 1, memory.ENVIRONMENT)
    try:
        about = worker.about()
    except ContenderFailed as failure:
        assert f"pip install {' '.join(PEER_PACKAGES[name])}" in str(failure)
        pytest.skip(f"{name} is not installed")
    else:
        assert PEER_PACKAGES[name][-1] in about["library"]
        for case in cases(
            ["8x8x16x1"], ["3", "global"], ["forward", "both"], "float32"
        ):
            assert worker.request("build", 600, case=vars(case))["seconds"] > 0
        # Arrays of more than 64 KiB, which are given back; smaller ones may fit into memory that is kept.
        (large,) = cases(["32x32x64x1"], ["3"], ["both"], "float32")
        worker.request("build", 600, case=vars(large))
        assert worker.request("memory", 600, calls=1)["bytes"] > 0
    finally:
        worker.close()


def test_peer_does_not_import_tensorflow():
    program = (
        "import sys, benchmarks.interleaved.worker, benchmarks.interleaved.peers\n"
    )
    program += "print({'tensorflow', 'tf_keras', 'torch', 'numpy'} & set(sys.modules) or 'none')"
    shown = run_code(program)
    assert (shown.stdout.strip(), shown.stderr) == ("none", "")


# Memory.


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="resident memory is measured on Linux only",
)
@pytest.mark.slow
def test_peak_memory_of_a_function():
    """16 MiB; 8 if only the result is counted, 24 if the input is too, or if nothing is reused.

    The bounds are halfway between these: kernels count pages per processor, so the last MiB may be missing.
    """
    environment = {**memory.ENVIRONMENT, "CUDA_VISIBLE_DEVICES": "-1"}
    assert 12 * 2**20 < int(output_of("peak_of_tensors.py", **environment)) < 20 * 2**20


def test_gpu_memory_is_counted_by_the_allocator(monkeypatch):
    used = {"current": 5000, "peak": 9000}
    config = mock.Mock(list_physical_devices=lambda kind: ["a GPU"])
    config.experimental.reset_memory_stats = lambda device: used.update(
        peak=used["current"]
    )
    config.experimental.get_memory_info = lambda device: {"GPU:0": dict(used)}[device]
    monkeypatch.setitem(sys.modules, "tensorflow", mock.Mock(config=config))
    assert (
        memory.on_gpu() and memory.peak_bytes(lambda: used.update(peak=5700), 2) == 700
    )


# Tables.


def test_summary_compares_with_the_fastest_other():
    rows = rows_of(
        {"position/einsum": 30.0, "position/conv": 9.0, "position/auto": 10.0}
    )
    compared = "position/auto runs at 0.90 times the speed of position/conv, the fastest other form"
    assert report.summary(rows) == f"forward + backward: {compared}"


def test_other_device_is_noted_and_not_compared():
    """PyTorch's layers may run on the CPU of a machine with a GPU."""
    rows = rows_of({"layer/auto": 4.0, "peer/timm": 12.0}, device="a GPU")
    rows[1].device = "CPU"
    for row in rows:
        row.note_device_mismatch()
    assert report.summary(rows) == ""
    assert "peer/timm, forward + backward: on CPU, not on a GPU" in report.table(rows)


def test_command_prints_and_writes_measurements(
    scripted, tmp_path, capsys, monkeypatch
):
    names = {"position/einsum": 0.01, "position/auto": 0.005}
    monkeypatch.setattr(scripted, "seconds", names)
    words = ["--maps=16x16x16x4", "--scopes=3,global", "--contenders=position/auto"]
    words += ["--repeats=2", "--threads=1", f"--out={tmp_path}"]
    assert command_line.main(layers.COMMAND, words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("position/auto ") for line in shown) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["layers.csv"]
    rows = list(csv.DictReader((tmp_path / "layers.csv").read_text().splitlines()))
    keys = [(row["scope"], row["pass"], row["contender"]) for row in rows]
    assert keys == list(product(["3", "global"], ["forward", "both"], names))
    for row in rows:
        assert (row["repeats"], row["threads"], row["note"]) == ("2", "1", "")
        assert float(row["peak_mib"]) == 1
        assert row["tensorflow"] == tf.__version__
    for reference, row in zip(rows[::2], rows[1::2], strict=True):
        ratio = float(reference["ms_median"]) / float(row["ms_median"])
        assert float(row["times_as_fast_as_einsum"]) == pytest.approx(ratio, rel=1e-3)
