# SPDX-License-Identifier: Apache-2.0
"""Tests of two reports of `lambdanet tpu-check --json` compared; no TPU compiler is needed."""

import dataclasses
import json

import pytest

from lambdanet import cli
from lambdanet.errors import InputError
from lambdanet.tpu import chips
from lambdanet.tpu.costs import Cost
from lambdanet.tpu.difference import (
    describe_slowdown,
    read_reports,
    render_difference,
)
from lambdanet.tpu.report import Report

NOTE = "libtpu 9.9 writes no cycles that can be read"


def _report(layers, topology="v5e:2x2", batch=8, memory=1.0, opcode="fusion", **other):
    """Returns a report whose layers take these milliseconds."""
    clock = chips.chip_of(topology).clock
    costs = []
    for name, milliseconds in layers.items():
        cycles = round(milliseconds * clock / 1e3)
        costs.append(Cost(name, opcode, f"net/{name}/op", 1, cycles, 1e12, 1e9))
    hbm = {"temporaries": int(memory * chips.GIB)}
    return Report("net", topology, 4, batch, hbm, tuple(costs), ("net",), **other)


@pytest.fixture
def read(tmp_path):
    """A function that writes two reports as JSON, with the layers of `--top`, and reads them."""

    def write_and_read(before, after, top=10):
        files = (tmp_path / "before.json", tmp_path / "after.json")
        for file, report in zip(files, (before, after), strict=True):
            file.write_text(json.dumps(report.to_json(top)))
        return read_reports(*files)

    return write_and_read


def _rows(text):
    """Returns the cells of each row of the tables, by the first of them."""
    rows = {}
    for line in text.splitlines():
        words = line.split("  ")
        cells = [word.strip() for word in words if word.strip()]
        if len(cells) == 5:
            rows[cells[0]] = cells[1:]
    return rows


def test_slower_and_faster_layers_in_order(read):
    before = _report({"stem": 2.0, "c4": 10.0, "c5": 4.0, "head": 1.0})
    after = _report({"stem": 2.5, "c4": 8.0, "c5": 4.0, "head": 1.0}, memory=1.5)
    text = render_difference(*read(before, after))
    rows = _rows(text)
    assert rows["time (ms)"] == ["17.000", "15.500", "-1.500", "-8.8"]
    assert rows["HBM temporaries (GiB)"] == ["1.000", "1.500", "+0.500", "+50.0"]
    assert rows["c4"] == ["10.000", "8.000", "-2.000", "-20.0"]
    assert rows["stem"] == ["2.000", "2.500", "+0.500", "+25.0"]
    assert text.index("\nc4") < text.index("\nstem")
    assert not {"c5", "head", "other layers"} & rows.keys()
    assert "operations: no difference" in text and "collectives: no diff" in text
    assert "before.json: net, 8 on each of 4 cores of v5e:2x2" in text


def test_layers_of_one_report_are_named(read):
    before = _report({"stem": 2.0, "old": 1.0})
    after = _report({"stem": 2.0, "new": 3.0})
    rows = _rows(render_difference(*read(before, after)))
    assert rows["old"] == ["1.000", "-", "only in A", "-"]
    assert rows["new"] == ["-", "3.000", "only in B", "-"]


def test_layers_that_are_not_listed_are_in_a_row(read):
    """The rows add up to the step, whichever layers `--top` has left out."""
    before = _report({"a": 9.0, "b": 5.0, "c": 4.0, "d": 1.0})
    after = _report({"a": 8.0, "b": 5.0, "c": 6.0, "d": 1.0})
    text = render_difference(*read(before, after, top=2))
    rows = _rows(text)
    assert rows["a"] == ["9.000", "8.000", "-1.000", "-11.1"]
    assert rows["other layers"] == ["10.000", "12.000", "+2.000", "+20.0"]
    assert "in other layers, since only A lists them: b\n" in text
    assert "in other layers, since only B lists them: c\n" in text
    pair = read(before, after, top=2)
    slower = describe_slowdown(*pair, 3)
    assert "5.26 % slower" in slower and ": other layers +2.000; allowed" in slower


def test_operations_by_opcode_and_collectives(read):
    sums = Cost("sum", "all-reduce", "", 3, 0, 0.0, 0.0, exchanged=1e6)
    before = _report({"a": 1.0, "b": 1.0})
    after = _report({"a": 2.0}, opcode="convolution")
    after = dataclasses.replace(after, operations=(*after.operations, sums))
    rows = _rows(render_difference(*read(before, after)))
    assert rows["fusion"] == ["2", "-", "only in A", "-"]
    assert rows["convolution"] == ["-", "1", "only in B", "-"]
    assert rows["all-reduce"] == ["-", "3", "only in B", "-"]
    assert float(rows["collectives, at least (ms)"][1]) > 0


def test_reports_of_earlier_versions(tmp_path):
    value = _report({"a": 1.0}).to_json()
    for key in ("opcodes", "collective_seconds", "cores_per_batch", "note"):
        del value[key]
    file = tmp_path / "old.json"
    file.write_text(json.dumps(value))
    text = render_difference(*read_reports(file, file))
    assert "operations: not counted in reports of earlier versions" in text
    assert _rows(text)["time (ms)"] == ["1.000", "1.000", "-", "-"]


def test_different_chips_and_groups_of_cores_are_in_the_head(read):
    before = _report({"a": 2.0})
    after = _report({"a": 1.0}, topology="v6e:2x2", model_parallel=2)
    head = render_difference(*read(before, after)).splitlines()[:3]
    assert head[1].endswith("net, 8 on each 2 of 4 cores of v6e:2x2")
    assert head[2] == "A is of a TPU v5e, B of a TPU v6e"


@pytest.mark.parametrize(
    ("milliseconds", "is_slower"), [(9.0, False), (10.3, False), (10.31, True)]
)
def test_slower_than_allowed(read, milliseconds, is_slower):
    before = _report({"stem": 1.0, "c4": 9.0})
    after = _report({"stem": 0.5, "c4": milliseconds - 0.5})
    line = describe_slowdown(*read(before, after), 3)
    assert bool(line) == is_slower
    if is_slower:
        assert line.count("\n") == 0 and "before.json, 10.310 ms instead of" in line
        assert "3.10 % slower" in line and ": c4 +0.810; allowed: 3 %" in line


def test_unknown_time_is_no_success(read):
    pair = read(_report({"a": 1.0}), _report({}, note=NOTE, counts=(2e12, 3e9)))
    text = render_difference(*pair)
    assert f"B has no time: {NOTE}" in text and "operations" not in text
    assert _rows(text)["time (ms)"] == ["1.000", "-", "only in A", "-"]
    assert _rows(text)["arithmetic (TFLOP)"] == ["1.000", "2.000", "+1.000", "+100.0"]
    with pytest.raises(InputError, match=f"after.json' has no time: {NOTE}"):
        describe_slowdown(*pair, 3)


@pytest.mark.parametrize("max_slower", [-1, float("nan"), float("inf")])
def test_wrong_percentage_is_refused(read, max_slower):
    pair = read(_report({"a": 1.0}), _report({"a": 1.0}))
    with pytest.raises(InputError, match="max_slower must be a percentage from 0 on"):
        describe_slowdown(*pair, max_slower)


def test_different_batches_are_refused(read):
    accepted = "after.json must be 8, as in .*before.json, got 16"
    with pytest.raises(InputError, match=f"batch_per_core of .*{accepted}"):
        read(_report({"a": 1.0}), _report({"a": 1.0}, batch=16))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"name": "net"}',
        {"seconds": float("nan")},
        {"seconds": -1},
        {"seconds": "1"},
        {"seconds": None},
        {"layers": [1]},
        {"hbm_bytes": 7},
        {"flops": None},
        {"opcodes": {"fusion": "many"}},
        {"collectives": None},
    ],
)
def test_file_that_is_no_report_is_refused(tmp_path, content):
    file = tmp_path / "file.json"
    report = _report({"a": 1.0}).to_json()
    if isinstance(content, dict):
        del report["note"]
        content = json.dumps(report | content).encode()
    file.write_bytes(content)
    with pytest.raises(InputError, match="file.json' is not a report of") as caught:
        read_reports(file, file)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="none.json' does not exist"):
        read_reports(tmp_path / "none.json", tmp_path / "none.json")


def test_command_and_its_exit_status(tmp_path, capsys):
    files = [tmp_path / name for name in ("before.json", "after.json")]
    for file, time in zip(files, (10.0, 10.4), strict=True):
        file.write_text(json.dumps(_report({"c4": time}).to_json(10)))
    words = ["tpu-check", f"--diff={files[0]}", str(files[1])]
    assert cli.main(words) == 0
    assert "+0.400" in capsys.readouterr().out
    assert cli.main([*words, "--max_slower=5"]) == 0
    capsys.readouterr()
    assert cli.main([*words, "--max_slower=3"]) == 1
    shown = capsys.readouterr()
    assert "+0.400" in shown.out
    assert "after.json is 4.00 % slower" in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--diff=a.json"], ["a.json"], ["--max_slower=3"], ["--diff=a", "b", "c"]]
)
def test_command_needs_two_reports(words, capsys):
    assert cli.main(["tpu-check", *words]) == 2
    printed = capsys.readouterr().err
    assert "--diff=BEFORE.json" in printed and printed.count("\n") == 1
