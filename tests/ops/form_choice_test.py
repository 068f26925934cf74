# SPDX-License-Identifier: Apache-2.0
"""The choices of `implementation="auto"`, against measurements and the TPU compiler's estimates."""

import dataclasses

import pytest
import tensorflow as tf
from helpers import relative_error, with_gradients
from refusals import refused

from lambdanet import ops
from lambdanet.backend import device
from lambdanet.core import onednn
from lambdanet.ops import kernels
from lambdanet.ops.kernels import KERNELS
from lambdanet.ops.position_term import Form, PositionTerm, Sizes, TwoForms
from lambdanet.ops.products import Product, in_chunks, query_first
from lambdanet.ops.tpu import products

CPU, TPU = device.DEVICES["CPU"], device.DEVICES["TPU"]
pytestmark = pytest.mark.usefixtures("measured_cpu")


def problem(side, d, b, bytes=4, **options):
    size = (side or 64,) * 2
    options |= {"bytes": bytes, "known": side is not None}
    return Sizes(b, size, size, (23, 23), 4, 16, d // 4, 1, **options)


def choose(sizes, kind="CPU", forms=None):
    """The form that "auto" chooses, of those in the row of `KERNELS` or those given."""
    row = KERNELS[kind]
    row = row if forms is None else dataclasses.replace(row, position_lambdas=forms)
    return kernels.choose_form(sizes, "auto", row, by_xla=False)


# Milliseconds of both passes, lambda first and query first: the best blocks measured on two cores
# with AVX-512, and the estimates of the TPU v3 compiler in bfloat16, by (side, d, b).
MILLISECONDS = {
    "CPU": {
        (7, 512, 8): (2.1, 0.8),
        (28, 128, 8): (39.0, 29.4),
        (56, 64, 1): (11.3, 15.3),
        (64, 256, 1): (62.3, 28.8),
    },
    "TPU": {
        (7, 512, 128): (0.55, 0.22),
        (28, 128, 32): (6.7, 7.2),
        (56, 64, 32): (16.0, 28.4),
        (64, 256, 8): (12.9, 13.6),
    },
}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(kind, sizes) for kind in MILLISECONDS for sizes in MILLISECONDS[kind]],
)
def test_order_is_the_faster_one(kind, sizes):
    lambda_first, query_first = MILLISECONDS[kind][sizes]
    bytes, forms = (2, (products.candidates,)) if kind == "TPU" else (4, None)
    form = choose(problem(*sizes, bytes), kind, forms)
    assert form.query_first == (query_first < lambda_first)


def test_large_maps_are_in_blocks_and_chunks():
    """All embeddings at 64x64 take a gigabyte, and the similarities of 8x8 queries 64 * 4 * 900 numbers.

    A form that grows with the square of an unknown size is never chosen.
    """
    for kind in device.DEVICES:
        for batch in (None, 8):
            assert choose(problem(None, 256, batch), kind).block is not None
        assert choose(problem(64, 256, 8), kind).block is not None
        assert choose(problem(7, 512, 8), kind).block is None
    form = Product(True, (8, 8))
    for batch in (8, None):
        chunk = form.chunk(problem(64, 256, batch), CPU)
        bytes_each = 64 * 4 * 900 * 4
        assert CPU.chunk_bytes / 2 < chunk * bytes_each <= CPU.chunk_bytes
    assert Product(True).chunk(problem(14, 256, 8), CPU) is None
    assert Product(False, (8, 8)).chunk(problem(64, 256, 1), CPU) is None


def test_fewer_examples_than_a_chunk_are_not_padded():
    """Of an unknown batch; without examples there is one of padding."""
    chunks = []

    def multiply(*inputs):
        # While the graph runs.
        tf.py_function(lambda x: chunks.append(len(x)), inputs[:1], [])
        return query_first(*inputs)

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2, 2, 3]), tf.TensorSpec([None, 4, 3])],
        autograph=False,
    )
    def run(queries, values):
        return in_chunks(multiply, queries, values, tf.ones([2, 3, 4]), 5)

    for batch, expected in ((0, [1]), (1, [1]), (5, [5]), (7, [5, 5])):
        chunks.clear()
        outputs = run(tf.ones([batch, 2, 2, 3]), tf.ones([batch, 4, 3]))
        assert outputs.shape == (batch, 2, 2, 3)
        assert chunks == expected


def test_memory_decides_between_forms_of_nearly_equal_time():
    class Fixed(Form):
        def __init__(self, time, size):
            self.seconds = lambda sizes, speed: time
            self.memory = lambda sizes, device: size

    small, fast, slow = Fixed(1.04, 1), Fixed(1.0, 3), Fixed(1.2, 0)
    for slack, best in ((1.0, fast), (1.05, small), (1.3, slow)):
        here = dataclasses.replace(CPU, slack=slack)
        assert kernels.choose_fastest([fast, small, slow], None, None, here) is best


def test_rates_of_the_environment(monkeypatch):
    monkeypatch.setenv("LAMBDANET_CPU_RATES", "1,2,3,4,5,6,7,8")
    assert device.cpu_speeds() == (device.Speed(1, 2, 3, 4), device.Speed(5, 6, 7, 8))
    for text in ("1,2", "1,2,3,4,5,6,7,x", "1,2,3,4,5,6,7,-8"):
        monkeypatch.setenv("LAMBDANET_CPU_RATES", text)
        with refused(f"LAMBDANET_CPU_RATES must be eight .*{text}"):
            device.cpu_speeds()


@pytest.mark.parametrize(
    ("flags", "variable", "row"),
    [
        ("avx2", "0", "_CPU_WITHOUT_ONEDNN"),
        ("avx2", None, "_CPU_WITHOUT_ONEDNN"),
        ("avx2", "1", "_CPU_WITHOUT_AVX512"),
        ("avx2 avx_vnni", None, "_CPU_WITHOUT_AVX512"),
        ("avx2 avx512f", None, "_CPU_WITHOUT_ONEDNN"),
        ("avx2 avx512f", "1", "_CPU"),
        ("avx2 avx512f avx512_vnni", None, "_CPU"),
        ("avx2 avx512f avx512_vnni", "0", "_CPU_WITHOUT_ONEDNN"),
    ],
)
def test_rates_of_the_processor(monkeypatch, flags, variable, row):
    """TensorFlow itself chooses oneDNN where a processor has VNNI, bfloat16 or AMX instructions."""
    monkeypatch.delenv("LAMBDANET_CPU_RATES", raising=False)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if variable:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", variable)
    text = f"model: 1\nflags\t\t: fpu {flags}\n"
    monkeypatch.setattr(onednn.Path, "read_text", lambda path: text)
    assert device.cpu_speeds() is getattr(device, row)


def test_assume_sets_the_kind_of_device():
    here = device.kind()
    with pytest.raises(RuntimeError, match="inside"), device.assume("TPU"):
        with device.assume("GPU"):
            assert device.kind() == "GPU"
        assert device.kind() == "TPU"
        raise RuntimeError("inside")
    assert device.kind() == here
    with refused("unknown kind of device 'NPU'; .*CPU"):
        device.assume("NPU").__enter__()


@pytest.mark.parametrize(
    ("training", "jit_compile", "convolves"),
    [
        (None, False, False),
        (True, False, False),
        (False, False, True),
        (False, True, False),
    ],
)
@pytest.mark.slow
def test_auto_convolves_on_a_cpu(training, jit_compile, convolves):
    """In the forward pass alone, and not under XLA; on a TPU see position_lambdas_test."""
    traced = tf.function(
        lambda *x: kernels.apply_position_lambdas(*x, training=training),
        jit_compile=jit_compile,
    )
    for side in (7, 28):
        specs = [2, side, side, 4, 16], [2, side, side, 16], [23, 23, 16]
        graph = traced.get_concrete_function(*map(tf.TensorSpec, specs)).graph
        types = {op.type for op in graph.get_operations()}
        assert any("Conv" in name for name in types) == (convolves and side > 7)


@pytest.mark.parametrize(
    ("sizes", "product", "convolution"),
    [
        ((14, 64, 8), 2.4, 3.0),
        ((28, 128, 8), 16.9, 16.0),
        ((28, 64, 8), 8.8, 8.0),
        ((64, 256, 1), 19.9, 18.7),
    ],
)
def test_convolution_of_a_forward_pass(sizes, product, convolution):
    inference = problem(*sizes, needs_gradient=False)
    assert isinstance(choose(inference), TwoForms) == (convolution < product)
    with_xla = kernels.choose_form(inference, "auto", KERNELS["CPU"], by_xla=True)
    assert with_xla == choose(problem(*sizes)) and isinstance(with_xla, Product)
    assert not isinstance(choose(inference, "TPU"), TwoForms)


@pytest.mark.parametrize("traced", [False, True])
def test_gradient_of_a_form_for_the_forward_pass(traced):
    """That of the form for both passes, as fine-tuning with `training=False` needs it.

    A tape around a traced function takes the gradient of one that was traced without it.
    """

    def function(needs_gradient):
        def apply(*inputs):
            term = PositionTerm(
                *inputs[:3], content=inputs[3], needs_gradient=needs_gradient
            )
            return kernels.apply_term(term)

        return tf.function(apply) if traced else apply

    shapes = [1, 56, 56, 4, 16], [1, 56, 56, 16, 1], [23, 23, 16, 1], [1, 16, 16]
    inputs = [
        tf.random.stateless_normal(shape, [0, i]) / 4 for i, shape in enumerate(shapes)
    ]
    results = (with_gradients(function(needed), inputs) for needed in (True, False))
    for found, expected in zip(*results, strict=True):
        assert relative_error(found, expected) < 1e-5


def test_form_table_has_costs_and_reasons(caplog):
    """Each choice is logged, once."""
    kernels.choose_form.cache_clear()
    caplog.set_level("DEBUG", "lambdanet")
    sizes = problem(28, 128, 8, needs_gradient=False)
    rows = ops.form_table(**vars(sizes)).splitlines()
    assert f"{Product(True)}: takes longer, or more memory" in rows[2]
    assert f" {choose(sizes).forward}: chosen" in rows[0]
    assert (
        caplog.messages.count(f"position lambdas by {Product(True)} for {sizes}") == 1
    )
    unknown = ops.form_table(**vars(problem(None, 128, 8)))
    assert unknown.count("not compared: needs a map and a table of known") == 2
    with device.assume("TPU"):
        assert ops.form_table(**vars(sizes)).count("not compared") == 6
