# SPDX-License-Identifier: Apache-2.0
"""Tests of `lambdanet tpu-check` without the TPU compiler: costs, largest batches and tables."""

import csv
import dataclasses
import itertools

import pytest
from refusals import refused
from refused_commands import assert_refused

from benchmarks import tpu_speeds
from benchmarks.papers import speeds
from lambdanet import command_line
from lambdanet.models import zoo
from lambdanet.tpu_estimates import chips, costs, hlo, largest_batch
from lambdanet.tpu_estimates.check import DoesNotFit
from lambdanet.tpu_estimates.compiler import Cache
from lambdanet.tpu_estimates.costs import Cost
from lambdanet.tpu_estimates.report import Report, layer_of, render_report


def _instruction(text):
    program = hlo.parse(f"ENTRY %main (x: f32[]) -> f32[] {{\n  ROOT %y = {text}\n}}")
    return program.computations[program.entry].root


def test_convolution_flops_without_padding():
    """Compares with a loop over outputs and kernel, also for dilated inputs, as in gradients."""
    cases = itertools.product((5, 6), (1, 3), (1, 2), (1, 2), (1, 2), (0, 1))
    for inputs, size, stride, lhs_dilate, rhs_dilate, pad in cases:
        outputs = (
            (inputs - 1) * lhs_dilate + 1 + 2 * pad - (size - 1) * rhs_dilate - 1
        ) // stride + 1
        positions = {i * lhs_dilate for i in range(inputs)}
        naive = sum(
            o * stride - pad + k * rhs_dilate in positions
            for o in range(outputs)
            for k in range(size)
        )
        window = (
            f"size={size} stride={stride} pad={pad}_{pad} {lhs_dilate=} {rhs_dilate=}"
        )
        convolution = f"f32[2,{outputs},7] convolution(%x, %w), window={{{window}}}, dim_labels=b0f_0io->b0f"
        flops = costs.convolution_flops(
            _instruction(convolution), (2, inputs, 3), (size, 3, 7)
        )
        assert flops == 2 * 2 * 7 * 3 * naive


@pytest.mark.parametrize(
    ("text", "size", "in_hbm"),
    [
        ("f32[10]", 40, True),
        ("bf16[3,100]{1,0:T(8,128)(2,1)}", 8 * 128 * 2, True),
        ("bf16[3,100]{0,1:T(8,128)(2,1)}", 104 * 128 * 2, True),
        ("f32[5,3,100]{2,1,0:T(8,128)S(1)}", 5 * 8 * 128 * 4, False),
        ("pred[]{:T(256)}", 1, True),
    ],
)
def test_array_bytes_with_tile_padding(text, size, in_hbm):
    (array,) = _instruction(f"{text} copy(%x)").arrays
    assert (array.bytes, array.in_hbm) == (size, in_hbm)


@pytest.mark.parametrize(
    ("op_name", "layer"),
    [
        ("gradient_tape/net/stem_norm/mul", "stem_norm"),
        ("net/stem_norm/mul", "stem_norm"),
        ("call.3/net/c4_spatial/position/map/while/MatMul", "c4_spatial"),
        ("SGD/add_2", "SGD"),
        ("XLA_Args", "weights and inputs"),
        ("reduce.17", "unnamed"),
    ],
)
def test_layer_of_an_operation(op_name, layer):
    assert layer_of(op_name, ["net"]) == layer


EXCHANGES = """HloModule exchanges

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%offloaded (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  ROOT %all-reduce.2 = f32[256]{0} all-reduce(%p), to_apply=%sum, metadata={op_name="inner"}
}

ENTRY %main (x: f32[1000], y: f32[100], z: f32[256]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  %y = f32[100]{0} parameter(1)
  %z = f32[256]{0} parameter(2)
  %all-reduce.1 = f32[1000]{0} all-reduce(%x), to_apply=%sum
  %gather-start = (f32[100]{0}, f32[400]{0}) all-gather-start(%y), dimensions={0}
  %all-gather.1 = f32[400]{0} all-gather(%y), dimensions={0}
  %reduce-scatter.1 = f32[250]{0} reduce-scatter(%x), to_apply=%sum
  %start = ((f32[256]{0}), f32[256]{0}) call-start(%z), to_apply=%offloaded
  %update = ((f32[256]{0}), f32[256]{0}) call-update(%start)
  %done = f32[256]{0} call-done(%update)
  %unknown = f32[1000]{0} copy(%x), backend_config={"estimated_cycles":"9223372036854775807"}
  ROOT %known = f32[1000]{0} copy(%x), backend_config={"estimated_cycles":"1500"}
}
"""


def test_what_a_core_sends():
    """A sum takes twice its size, and what runs beside the program counts once."""
    found = costs.profile(EXCHANGES).operations
    sent = [cost.exchanged for cost in found if cost.collective]
    assert sent == [2 * 4000, 1600, 1600, 4000, 2 * 1024]
    report = Report("sums", "v5e:2x2", 4, 8, {}, tuple(found))
    kinds = {"all-reduce": 2, "all-gather": 2, "reduce-scatter": 1}
    assert report.collectives == kinds
    assert report.collective_seconds == pytest.approx(sum(sent) / 200e9)
    assert report.cycles == 1500 and report.seconds == pytest.approx(1e-6)
    assert report.opcodes["copy"] == 2 and "call-update" not in report.opcodes
    text = render_report(report)
    assert (
        "2 all-reduce, 2 all-gather, 1 reduce-scatter per step; at least 0.00 ms"
        in text
    )


def test_report_without_a_time():
    note = "libtpu 9.9 writes no cycles that can be read"
    memory = {"temporaries": 3 * chips.GIB}
    report = Report("new", "v6e:2x2", 4, 8, memory, (), note=note, counts=(2e12, 3e9))
    text = render_report(report)
    assert f"time          unknown: {note}\n" in text and "2.000 TFLOP" in text
    assert "HBM           3.00 of 32.00 GiB" in text and "layers" not in text
    found = report.to_json()
    assert (found["seconds"], found["flops"], found["note"]) == (None, 2e12, note)


@pytest.mark.parametrize("topology", chips.TOPOLOGIES)
def test_peak_of_a_chip_is_a_multiple_of_its_clock(topology):
    """The peak is a power of two of matrix units with 128 x 128 multiply-adds per cycle."""
    chip = chips.chip_of(topology)
    units = chip.peak / chip.clock / (2 * 128 * 128)
    assert units == pytest.approx(round(units), rel=0.01) and round(units) in (
        1,
        2,
        4,
        8,
        16,
    )


def _fake(
    batch: int, seconds: float = 1.0, hbm: int = 0, topology: str = "v3:2x2"
) -> Report:
    cost = Cost(
        "c",
        "fusion",
        "net/layer/op",
        1,
        round(seconds * chips.chip_of(topology).clock),
        1e12,
        1e9,
    )
    return Report("fake", topology, 8, batch, {"temporaries": hbm}, (cost,), ("net",))


@pytest.mark.parametrize("start", [1, 8, 128, 1000])
@pytest.mark.parametrize("largest", [1, 2, 3, 7, 50, 130, 1023])
def test_largest_batch_takes_few_compilations(start, largest):
    tried = []

    def check(batch):
        tried.append(batch)
        if batch > largest:
            raise DoesNotFit("too large")
        return _fake(batch, hbm=int(chips.GIB * (1 + 15 * batch / (largest + 0.5))))

    found = largest_batch.largest_batch(check, start).batch
    assert (
        found
        <= largest
        < found + max(1, 2 ** (largest.bit_length() - 1) // largest_batch.STEPS)
    )
    doublings = abs(start.bit_length() - largest.bit_length())
    assert len(tried) == len(set(tried)) <= doublings + 5
    largest = 0
    with pytest.raises(DoesNotFit):
        largest_batch.largest_batch(check, start)


def _paper_like(table, refused):
    """A fake compiler: half as fast as the paper; the models and batches in `refused` do not fit."""
    seconds = {
        (row.model, row.input_size): table.seconds(row.printed) for row in table.rows
    }

    def check(build, topology):
        recipe, mode, batch = build.args
        assert (topology, mode) == ("v3:2x2", table.mode)
        assert bool(recipe.mixed_precision) == table.mixed_precision
        if not refused.isdisjoint({(recipe.model, batch), (recipe.model, None)}):
            raise DoesNotFit(f"{recipe.model} does not fit")
        paper = seconds[recipe.model, recipe.input_size]
        return _fake(batch, 2 * paper * batch * 8 / 1024)

    return check


@pytest.mark.parametrize("number", speeds.TABLES)
def test_paper_speeds_beside_estimates(number):
    too_large = {
        ("lambda_resnet_420", 128),
        ("lambda_resnet_270", None),
    }
    table = speeds.TABLES[number]
    found = tpu_speeds.estimate(number, _paper_like(table, too_large))
    assert tpu_speeds.rank_correlation(table, found) == pytest.approx(1)
    for entry, row in zip(found, table.rows, strict=True):
        assert row.model in zoo.MODELS and entry.row == row
        if row.model == "lambda_resnet_270":
            assert entry.report is None and "does not fit" in entry.note
        else:
            ours = table.figure(entry.images_per_second)
            slower = 2 if table.unit == "s" else 0.5
            assert ours == pytest.approx(row.printed * slower, rel=1e-6)
            assert entry.report.batch == (
                64 if row.model == "lambda_resnet_420" else 128
            )
    _, *lines = tpu_speeds.render_speeds(number, found, "csv").splitlines()
    for entry, cells in zip(found, csv.reader(lines), strict=True):
        if entry.report:
            assert cells[5] == cells[6]  # times relative to the first row


def test_paper_speeds_without_a_time():
    def check(build, topology):
        return dataclasses.replace(_fake(128, 0), note="no cycles")

    found = tpu_speeds.estimate("12", check, rows=[1, 2, 3])
    assert [entry.note for entry in found] == ["no cycles"] * 3
    assert tpu_speeds.rank_correlation(speeds.TABLES["12"], found) is None


def test_table_of_families(monkeypatch):
    models = ("mobilenet_v2", "mobilenet_v2_lambda")
    settings = tuple(tpu_speeds.Setting(model, 224, 128) for model in models)
    monkeypatch.setattr(tpu_speeds, "SETTINGS", settings)

    def check(build, topology):
        recipe, mode, batch = build.args
        assert recipe.mixed_precision and mode == "train"
        if topology.startswith("v3"):
            raise DoesNotFit("too large")
        seconds = 0 if topology.startswith("tpu7x") else 0.5
        return _fake(batch, seconds, batch * chips.GIB // 16, topology)

    _, row = tpu_speeds.render_families(
        check, rows=[2], table_format="csv"
    ).splitlines()
    assert row == "mobilenet_v2_lambda,224,3.2,0.6,128,8.00,500.0,500.0,-,-"
    with refused("rows must be from 1 to 2 for the table of families, got 3"):
        tpu_speeds.render_families(check, rows=[3])


def test_cache_ignores_broken_files(tmp_path):
    cache = Cache(tmp_path / "folder")
    assert cache.read("key") is None
    cache.write("key", {"text": "a\nb"})
    assert cache.read("key") == {"text": "a\nb"}
    next(cache.folder.iterdir()).write_bytes(b"broken")
    assert cache.read("key") is None
    # Not a folder: no error.
    Cache(tmp_path / "folder" / "key.json.gz" / "below").write("key", {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table=11"], "unknown table of speeds '11'.*12"),
        (["--table=12", "--rows=9"], "rows must be from 1 to 8 for table 12, got 9"),
        (["--table=12", "--rows=one"], "--rows must be numbers .*, got 'one'"),
        (["--chips=v1"], "unknown chip 'v1'"),
    ],
)
def test_wrong_argument_is_one_line(words, message, capsys):
    assert_refused(command_line.main(tpu_speeds.COMMAND, words), message, capsys)
