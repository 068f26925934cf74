# SPDX-License-Identifier: Apache-2.0
"""The forms for certain maps on a TPU, against the paper's equations: values and gradients."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_equal_with_gradients,
    product_error,
    relative_error,
    with_gradients,
)
from position_cases import average_pool, with_content

from lambdanet.backend import device
from lambdanet.ops import kernels
from lambdanet.ops.position_term import Geometry, PositionTerm, Sizes
from lambdanet.ops.tpu import block_diagonal, row_convolution
from lambdanet.ops.tpu.block_diagonal import BlockDiagonal
from lambdanet.ops.tpu.row_convolution import RowConvolution

TPU = device.DEVICES["TPU"]


def chosen(term):
    return kernels.choose_form(term.sizes, "auto", kernels.KERNELS["TPU"], by_xla=True)


# The form; the sizes of queries, context and scope; u; the pool. Remainders are of groups and blocks.
CASES = {
    "no remainder": (BlockDiagonal(), [8, 13], [8, 13], [9, 11], 2, 1),
    "remainder": (BlockDiagonal(), [10, 10], [10, 10], [23, 9], 1, 1),
    "sequence": (BlockDiagonal(), [101], [101], [91], 1, 1),
    "pool": (BlockDiagonal(), [9, 12], [9, 12], [23, 23], 1, 3),
    "blocks": (RowConvolution(), [12, 16], [12, 16], [5, 7], 1, 1),
    "blocks, remainder": (RowConvolution(), [13, 9], [13, 9], [3, 1], 2, 1),
    "another context": (RowConvolution(), [5, 21], [14, 10], [7, 9], 1, 1),
    # Some queries see none of it.
    "lower context": (RowConvolution(), [16, 8], [12, 30], [3, 3], 1, 1),
}


@pytest.fixture(autouse=True)
def forms_of_any_size(monkeypatch):
    monkeypatch.setattr(block_diagonal, "POOLED_POSITIONS", range(100, 200))
    monkeypatch.setattr(row_convolution, "MIN_IMAGES", 1)
    monkeypatch.setattr(RowConvolution, "seconds", lambda *_: 0.0)
    kernels.choose_form.cache_clear()
    yield
    kernels.choose_form.cache_clear()


def make_term(size, context_size, scope, u, pool_size, dtype="float64"):
    rng = np.random.default_rng(0)
    shapes = [[2, *size, 2, 16], [2, *context_size, 3, u], [*scope, 16, u], [2, 16, 3]]
    queries, values, table, content = (
        tf.constant(rng.normal(size=shape), dtype) for shape in shapes
    )
    geometry = (
        Geometry() if pool_size == 1 else Geometry(strides=2, pool_size=pool_size)
    )
    return PositionTerm(
        queries / 8, values, table, geometry, content, needs_gradient=False
    )


def inputs_of(term):
    return [term.queries, term.values, term.table, term.content]


def on_tpu(form, term):
    """The form as a function of the inputs of a term."""
    return lambda *x: form.apply(
        PositionTerm(*x[:3], term.geometry, x[3], needs_gradient=False), TPU
    )


def by_the_paper(geometry, *inputs):
    outputs = with_content(*inputs)
    if geometry.pool_size == 1:
        return outputs
    return average_pool(outputs, [(geometry.pool_size, geometry.strides)] * 2)


@pytest.mark.parametrize("case", CASES)
def test_form_equals_the_paper(case):
    form, *sizes = CASES[case]
    term = make_term(*sizes)
    assert chosen(term) == form
    expected = partial(by_the_paper, term.geometry)
    assert_equal_with_gradients(on_tpu(form, term), expected, inputs_of(term), 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["remainder", "blocks"])
def test_form_in_low_precision(case, dtype):
    """Outputs and gradients have about the error of the paper's equations in the same precision."""
    form, *sizes = CASES[case]
    low, exact = make_term(*sizes, dtype), make_term(*sizes)
    found = with_gradients(on_tpu(form, low), inputs_of(low))
    plain = with_gradients(partial(by_the_paper, low.geometry), inputs_of(low))
    expected = with_gradients(partial(by_the_paper, exact.geometry), inputs_of(exact))
    for a, b, c in zip(found, plain, expected, strict=True):
        assert a.dtype == dtype
        assert (
            relative_error(a, c)
            < 1.5 * relative_error(b, c)
            < 48 * product_error(dtype)
        )


@pytest.mark.parametrize("case", ["remainder", "blocks"])
def test_form_of_an_unknown_batch(case):
    form, *sizes = CASES[case]
    term = make_term(*sizes)
    batches = [term.queries, term.values, term.content]

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in batches],
    )
    def apply(queries, values, content):
        unknown = PositionTerm(
            queries, values, term.table, content=content, needs_gradient=False
        )
        assert chosen(unknown) == form
        return form.apply(unknown, TPU)

    expected = by_the_paper(term.geometry, *inputs_of(term))
    np.testing.assert_allclose(apply(*batches), expected, atol=1e-9)


# Where each form is a candidate.
FITTING = {
    block_diagonal: Sizes(
        8, (14, 14), (14, 14), (23, 23), 4, 16, 16, needs_gradient=False
    ),
    row_convolution: Sizes(512, (56, 56), (56, 56), (5, 5), 4, 16, 16),
}


@pytest.mark.parametrize(
    ("form", "change"),
    [
        (block_diagonal, {"scope": (9, 9)}),  # most pairs are out of scope
        (block_diagonal, {"known": False}),
        (block_diagonal, {"h": 16}),
        (block_diagonal, {"needs_gradient": True}),
        (row_convolution, {"known": False}),
        (row_convolution, {"context_size": (6, 56)}),
        (row_convolution, {"batch": 8}),
        (row_convolution, {"geometry": Geometry(dilation=2)}),
    ],
)
def test_form_is_not_applicable(form, change, monkeypatch):
    monkeypatch.undo()  # the sizes are those of the library
    assert form.candidates(FITTING[form])
    assert not form.candidates(dataclasses.replace(FITTING[form], **change))
