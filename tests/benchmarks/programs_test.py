# SPDX-License-Identifier: Apache-2.0
"""The programs of maintainers in their smallest sizes, their mistakes, and the rates of a processor."""

import csv
import dataclasses

import pytest
from refused_commands import assert_refused

from benchmarks import input as loaders
from benchmarks import layers, models, rates, tables
from benchmarks.device import __main__ as device_program
from benchmarks.interleaved.cases import InputCase
from lambdanet.backend import device
from lambdanet.core import command_line
from lambdanet.ops import convolution, products
from lambdanet.ops.position_term import Sizes

MODELS = ["lambda_resnet_tiny:key_dim=8@32", "lambda_resnet_tiny@32"]
# A program, its arguments, the number of its rows, and the column of relative speeds.
SMALLEST = [
    (
        layers,
        ["--maps=8x8x8x1", "--scopes=3,global", "--contenders=position/auto"],
        8,
        "times_as_fast_as_einsum",
    ),
    (models, [*MODELS, "--batch_size=1"], 4, "times_as_fast_as_first"),
]


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize(("program", "words", "count", "column"), SMALLEST)
def test_program_runs_in_its_smallest_size(
    program, words, count, column, tmp_path, capfd
):
    """Speeds are relative to the first row of two."""
    words = [*words, "--repeats=2", f"--out={tmp_path}"]
    status = command_line.main(program.COMMAND, words)
    printed = capfd.readouterr()
    assert status == 0, printed.err
    # The machine, a head and a row at least.
    assert len(printed.out.splitlines()) > 2
    (file,) = tmp_path.iterdir()
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == count
    for reference, row in zip(rows[::2], rows[1::2], strict=True):
        assert row["pass"] == reference["pass"] and row["repeats"] == "2"
        ratio = float(reference["ms_median"]) / float(row["ms_median"])
        assert float(row[column]) == pytest.approx(ratio, rel=1e-3)


@pytest.mark.weekly
@pytest.mark.slow
def test_speed_of_each_loader_is_printed_or_why_not(capfd):
    assert command_line.main(loaders.COMMAND, ["--images=8", "--repeats=1"]) == 0
    lines = capfd.readouterr().out.splitlines()
    found = [line.split() for line in lines if line.startswith("input/")]
    assert [name for name, *_ in found] == 3 * [*loaders.LOADERS]
    # Ours is the reference, without a note.
    assert found[0][2:] == ["1.00"]


def test_turn_of_input_reads_each_picture_once(tmp_path):
    loaders.write_pictures(f"{tmp_path}/train", 8)
    case = InputCase(8, True, folder=str(tmp_path))
    loaders.build("input/lambdanet", case)()
    with pytest.raises(AssertionError):
        loaders.build("input/lambdanet", dataclasses.replace(case, batch=10))()


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        (layers, ["--maps=7x7x12x1"], "channels of map '7x7x12x1' must be a multiple"),
        (layers, ["--contenders=peer/timm"], "is from another library and needs"),
        (models, ["resnet_50@0"], "model must be NAME, .*, got 'resnet_50@0'"),
        (layers, ["--out=."], "layers.csv' exists; --overwrite"),
        (models, ["resnet_50", "--out=."], "csv' exists; --overwrite"),
        (device_program, ["--out=."], "json' exists; --overwrite"),
        (tables, ["14"], "unknown table '14'"),
    ],
)
def test_mistake_is_one_line(program, words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("layers.csv", "models.csv", "device.json"):
        (tmp_path / name).write_text("mine")
    status = command_line.main(program.COMMAND, words)
    assert assert_refused(status, message, capsys) == ""
    assert (tmp_path / "models.csv").read_text() == "mine"


@pytest.mark.slow
def test_rates_are_those_of_a_processor_that_keeps_to_them(monkeypatch, capsys):
    """Times that are exactly the estimates by known rates give these rates, as a setting."""
    true = device.Speed(3e10, 9e8, 4e9, 5e10)

    def measure(case, cpu, repeats):
        size = (case.height, case.width)
        sizes = Sizes(
            case.batch, size, size, (23, 23), 4, 16, 16, needs_gradient=case.backward
        )
        forms = [*products.candidates(sizes)]
        if not case.backward:
            forms += convolution.candidates(sizes)
        return [
            rates.Timing(case, sizes, form, form.seconds(sizes, true)) for form in forms
        ]

    monkeypatch.setattr(rates, "measure_case", measure)
    maps = "--maps=14x14x64x2,28x28x64x2,40x40x64x1"
    assert command_line.main(rates.COMMAND, [maps]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    name, _, setting = last.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, setting)
    # A training step has none of the forms that use the third rate.
    _, fitted = device.cpu_speeds()
    numbers = dataclasses.astuple(fitted)[:4]
    assert numbers == pytest.approx(dataclasses.astuple(true)[:4], rel=0.05)
