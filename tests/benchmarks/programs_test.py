# SPDX-License-Identifier: Apache-2.0
"""The programs of maintainers in their smallest sizes, and the rates of a processor."""

import csv
import dataclasses
import io

import pytest

from benchmarks import layers, models, rates
from benchmarks.interleaved import cases
from lambdanet import command_line
from lambdanet.backend import device
from lambdanet.ops import convolution, products
from lambdanet.ops.position_term import Sizes

LAYERS = ["--maps=8x8x8x1", "--scopes=3", "--contenders=position/auto"]
SMALLEST = [
    (layers, [*LAYERS, "--repeats=2"]),
    (models, ["lambda_resnet_tiny@32", "--batch_size=1", "--repeats=2"]),
]


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize(("program", "words"), SMALLEST)
def test_program_runs_in_its_smallest_size(program, words, capfd):
    status = command_line.main(program.COMMAND, words)
    printed = capfd.readouterr()
    assert status == 0, printed.err
    # The machine, a head and a row at least.
    assert len(printed.out.splitlines()) > 2


@pytest.mark.slow
def test_rates_are_those_of_a_processor_that_keeps_to_them():
    """Times that are exactly the estimates by known rates give these rates."""
    true = device.Speed(3e10, 9e8, 4e9, 5e10)
    timings = []
    for case in cases.cases(
        ["14x14x64x2", "28x28x64x2", "40x40x64x1"], ["23"], ["forward"], "float32"
    ):
        size = (case.height, case.width)
        sizes = Sizes(case.batch, size, size, (23, 23), 4, 16, 16, needs_gradient=False)
        for form in (*products.candidates(sizes), *convolution.candidates(sizes)):
            timings.append(rates.Timing(case, sizes, form, form.seconds(sizes, true)))
    fitted = rates.fit(timings, device.DEVICES["CPU"].inference)
    for rate, expected in zip(
        dataclasses.astuple(fitted)[:4], dataclasses.astuple(true)[:4], strict=True
    ):
        assert rate == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_rates_are_printed_as_a_setting(monkeypatch, capsys, tmp_path):
    file = tmp_path / "rates.csv"
    arguments = ["--maps=7x7x64x1,9x9x64x1", "--repeats=1", f"--out={file}"]
    assert command_line.main(rates.COMMAND, arguments) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    name, _, setting = last.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, setting)
    training, inference = device.cpu_speeds()
    assert min(*dataclasses.astuple(training), *dataclasses.astuple(inference)) > 0
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["pass"] for row in rows} == {"both", "forward"}
    assert min(float(row["milliseconds"]) for row in rows) > 0
