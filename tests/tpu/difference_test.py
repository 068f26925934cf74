# SPDX-License-Identifier: Apache-2.0
"""Tests of two reports of `lambdanet tpu-check --json` compared; no TPU compiler is needed."""

import dataclasses
import json

import pytest

from lambdanet import cli
from lambdanet.errors import InputError
from lambdanet.tpu import chips
from lambdanet.tpu.costs import Cost
from lambdanet.tpu.difference import read_reports, render_difference
from lambdanet.tpu.report import Report


def _report(layers, topology="v5e:2x2", memory=1.0, opcode="fusion"):
    """Returns a report whose layers take these milliseconds."""
    clock = chips.chip_of(topology).clock
    costs = []
    for name, milliseconds in layers.items():
        cycles = round(milliseconds * clock / 1e3)
        costs.append(Cost(name, opcode, f"net/{name}/op", 1, cycles, 1e12, 1e9))
    hbm = {"temporaries": int(memory * chips.GIB)}
    return Report("net", topology, 4, 8, hbm, tuple(costs), ("net",))


@pytest.fixture
def read(tmp_path):
    """A function that writes two reports as JSON, and reads them."""

    def write_and_read(before, after):
        files = (tmp_path / "before.json", tmp_path / "after.json")
        for file, report in zip(files, (before, after), strict=True):
            file.write_text(json.dumps(report.to_json(10)))
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


def test_operations_by_opcode_and_collectives(read):
    sums = Cost("sum", "all-reduce", "", 3, 0, 0.0, 0.0, exchanged=1e6)
    before = _report({"a": 1.0, "b": 1.0})
    after = _report({"a": 2.0}, opcode="convolution", topology="v6e:2x2")
    after = dataclasses.replace(after, operations=(*after.operations, sums))
    text = render_difference(*read(before, after))
    assert "A is of a TPU v5e, B of a TPU v6e" in text
    rows = _rows(text)
    assert rows["fusion"] == ["2", "-", "only in A", "-"]
    assert rows["convolution"] == ["-", "1", "only in B", "-"]
    assert rows["all-reduce"] == ["-", "3", "only in B", "-"]
    assert float(rows["collectives, at least (ms)"][1]) > 0


@pytest.mark.parametrize(
    "content",
    [
        b"[1]",
        b"[" * 100_000,
        {"seconds": float("nan")},
        {"layers": [1]},
        {"opcodes": {"fusion": "many"}},
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
    assert cli.main([*words, "--max_slower=-1"]) == 2
    assert "max_slower must be a percentage from 0 on" in capsys.readouterr().err
    words[2] = str(tmp_path / "none.json")
    assert cli.main(words) == 2
    assert "none.json' does not exist" in capsys.readouterr().err
    assert cli.main(words[:2]) == 2
    assert "--diff=BEFORE.json" in capsys.readouterr().err
