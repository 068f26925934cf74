# SPDX-License-Identifier: Apache-2.0
"""The forms for certain maps on a TPU, against the paper's equations: values and gradients."""

import numpy as np
import pytest
import tensorflow as tf

from lambdanet.backend import device
from lambdanet.ops import kernels, position_lambdas, reference
from lambdanet.ops.position_term import Geometry, PositionTerm
from lambdanet.ops.tpu import block_diagonal, row_convolution
from lambdanet.ops.tpu.block_diagonal import BlockDiagonal
from lambdanet.ops.tpu.row_convolution import RowConvolution

TPU = device.DEVICES["TPU"]


def chosen(term):
    return position_lambdas.choose_form(term.sizes, "auto", kernels.KERNELS["TPU"], by_xla=True)


def apply_on_tpu(form):
    return lambda term: form.apply(term, TPU)


# The form; the sizes of queries, context and scope; u; the pool. Remainders are of groups and blocks.
CASES = {
    "no remainder": (BlockDiagonal(), [8, 13], [8, 13], [9, 11], 2, 1),
    "remainder": (BlockDiagonal(), [10, 10], [10, 10], [23, 9], 1, 1),
    "sequence": (BlockDiagonal(), [101], [101], [91], 1, 1),
    "pool": (BlockDiagonal(), [9, 12], [9, 12], [23, 23], 1, 3),
    "blocks": (RowConvolution(), [12, 16], [12, 16], [5, 7], 1, 1),
    "blocks, remainder": (RowConvolution(), [13, 9], [13, 9], [3, 1], 2, 1),
    "another context": (RowConvolution(), [5, 21], [14, 10], [7, 9], 1, 1),
    "lower context": (RowConvolution(), [16, 8], [12, 30], [3, 3], 1, 1),  # some queries see none of it
}


@pytest.fixture(autouse=True)
def forms_of_any_size(monkeypatch):
    monkeypatch.setattr(block_diagonal, "POOLED_POSITIONS", range(100, 200))
    monkeypatch.setattr(row_convolution, "MIN_IMAGES", 1)
    monkeypatch.setattr(RowConvolution, "seconds", lambda *_: 0.0)
    position_lambdas.choose_form.cache_clear()
    yield
    position_lambdas.choose_form.cache_clear()


def make_term(size, context_size, scope, u, pool_size, dtype="float64"):
    rng = np.random.default_rng(0)
    shapes = [[2, *size, 2, 16], [2, *context_size, 3, u], [*scope, 16, u], [2, 16, 3]]
    queries, values, table, content = (tf.constant(rng.normal(size=shape), dtype) for shape in shapes)
    geometry = Geometry() if pool_size == 1 else Geometry(strides=2, pool_size=pool_size)
    return PositionTerm(queries / 8, values, table, geometry, content, needs_gradient=False)


def by_the_paper(term):
    b, *size, h, k = term.queries.shape
    embeddings = reference.gather_embeddings(term.table, size, term.context_size)
    queries, values = (tf.reshape(x, [b, -1, *x.shape[-2:]]) for x in (term.queries, term.values))
    outputs = reference.apply_position_lambdas(queries, values, embeddings)
    outputs = tf.reshape(outputs + tf.einsum("bnhk,bkv->bnhv", queries, term.content), [b, *size, -1])
    if term.geometry.pool_size > 1:
        outputs = tf.nn.avg_pool2d(outputs, term.geometry.pool_size, term.geometry.strides, "SAME")
    return tf.reshape(outputs, [*outputs.shape[:-1], h, -1])


def with_gradients(compute, term):
    inputs = [term.queries, term.values, term.table, term.content]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = compute(term)
        loss = tf.reduce_sum(tf.sin(outputs))
    return outputs, *tape.gradient(loss, inputs)


@pytest.mark.parametrize("case", CASES)
def test_form_equals_the_paper(case):
    form, *sizes = CASES[case]
    term = make_term(*sizes)
    assert chosen(term) == form
    results = with_gradients(apply_on_tpu(form), term)
    for got, expected in zip(results, with_gradients(by_the_paper, term), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02)])
@pytest.mark.parametrize("case", ["remainder", "blocks"])
def test_form_in_low_precision(case, dtype, tolerance):
    """The error of outputs and gradients, relative to their norm."""
    form, *sizes = CASES[case]
    for got, expected in zip(
        with_gradients(apply_on_tpu(form), make_term(*sizes, dtype)),
        with_gradients(by_the_paper, make_term(*sizes)),
        strict=True,
    ):
        error = np.linalg.norm(tf.cast(got, "float64") - expected) / np.linalg.norm(expected)
        assert got.dtype == dtype and error < tolerance


@pytest.mark.parametrize("case", ["remainder", "blocks"])
def test_form_of_an_unknown_batch(case):
    form, *sizes = CASES[case]
    term = make_term(*sizes)
    batches = [term.queries, term.values, term.content]

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in batches]
    )
    def apply(queries, values, content):
        unknown = PositionTerm(queries, values, term.table, content=content, needs_gradient=False)
        assert chosen(unknown) == form
        return form.apply(unknown, TPU)

    np.testing.assert_allclose(apply(*batches), by_the_paper(term), atol=1e-9)


@pytest.mark.parametrize(
    ("size", "scope", "options"),
    [
        ([14, 14], [9, 9], {}),  # most pairs are out of scope
        ([7, 7], [23, 23], {}),
        ([None, 14], [23, 23], {}),
        ([14, 14], [23, 23], {"h": 16}),
        ([12, 12], [23, 23], {"pool_size": 3}),  # pools are first, with a gradient
        ([14, 14], [23, 23], {}),  # with a gradient
    ],
)
def test_block_diagonal_is_not_applicable(size, scope, options):
    h, pool_size = options.get("h", 4), options.get("pool_size", 1)
    geometry = Geometry(strides=2 if pool_size > 1 else 1, pool_size=pool_size)

    @tf.function
    def trace(queries, values):
        term = PositionTerm(queries, values, tf.zeros([*scope, 16, 1]), geometry)
        assert not block_diagonal.candidates(term.sizes)

    trace.get_concrete_function(tf.TensorSpec([8, *size, h, 16]), tf.TensorSpec([8, *size, 16, 1]))
