# SPDX-License-Identifier: Apache-2.0
"""Tests of `lambdanet tpu-check` without the TPU compiler: costs, largest batches and tables."""

import itertools

import pytest

from lambdanet.tpu_estimates import chips, costs, hlo, largest_batch
from lambdanet.tpu_estimates.check import DoesNotFit
from lambdanet.tpu_estimates.compiler import Cache
from lambdanet.tpu_estimates.costs import Cost
from lambdanet.tpu_estimates.report import Report, render_report


def _instruction(text):
    program = hlo.parse(f"ENTRY %main (x: f32[]) -> f32[] {{\n  ROOT %y = {text}\n}}")
    return program.computations[program.entry].root


def test_convolution_flops_without_padding():
    """Compares with a loop over outputs and kernel, also for dilated inputs, as in gradients."""
    cases = itertools.product((5, 6), (1, 3), (1, 2, 4), (1, 2, 3), (1, 2), (0, 1))
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


def test_flops_of_many_products():
    """A batch is a window over all of it, whose pairs are too many to visit one by one."""
    window = "{size=500000 stride=499999 lhs_dilate=500000}"
    product = (
        f"f32[500000,7,5] convolution(%x, %w), {window=!s}, dim_labels=0bf_0io->0bf"
    )
    shapes = (500_000, 7, 3), (500_000, 3, 5)
    assert costs.convolution_flops(_instruction(product), *shapes) == 2 * 500_000 * 105


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
    assert f"unknown: {note}\n" in render_report(report)
    found = report.to_json()
    assert (found["seconds"], found["flops"], found["note"]) == (None, 2e12, note)


def _fake(batch, seconds=1.0, hbm=0):
    cycles = round(seconds * chips.chip_of("v3:2x2").clock)
    cost = Cost("c", "fusion", "net/layer/op", 1, cycles, 1e12, 1e9)
    return Report("fake", "v3:2x2", 8, batch, {"temporaries": hbm}, (cost,), ("net",))


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


def test_cache_ignores_broken_files(tmp_path):
    cache = Cache(tmp_path / "folder")
    assert cache.read("key") is None
    cache.write("key", {"text": "a\nb"})
    assert cache.read("key") == {"text": "a\nb"}
    next(cache.folder.iterdir()).write_bytes(b"broken")
    assert cache.read("key") is None
    # Not a folder: no error.
    Cache(tmp_path / "folder/key.json.gz/below").write("key", {})
