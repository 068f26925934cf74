# SPDX-License-Identifier: Apache-2.0
"""Pools, chunks, half precision and unknown sizes; reference_test compares values and gradients."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from fuzzing import pairwise
from helpers import assert_close, assert_equal_with_gradients
from position_cases import CASES, average_pool, random_case
from refusals import refused

from lambdanet.backend import device
from lambdanet.ops import (
    content_lambdas,
    kernels,
    products,
    relative_positions,
)
from lambdanet.ops.kernels import apply_position_lambdas
from lambdanet.ops.position_term import Sizes
from lambdanet.ops.products import Product, in_chunks
from lambdanet.ops.relative_positions import PairAxis
from lambdanet.ops.tpu import products as tpu_products

# The side of windows and their distance, along one axis after the other.
POOLS = [(3, 2), (2, 2), (4, 3), (1, 1)]


@pytest.mark.parametrize(
    ("case", "first", "pools_first"),
    pairwise(
        [name for name in CASES if "strides" not in CASES[name]],
        range(3),
        [False, True],
    ),
)
def test_pool_equals_average_pool(case, first, pools_first, monkeypatch):
    if pools_first:
        row = dataclasses.replace(
            kernels.KERNELS["CPU"], position_lambdas=(tpu_products.pooled_candidates,)
        )
        monkeypatch.setitem(kernels.KERNELS, "CPU", row)
    arguments = dict(CASES[case])
    pools = (2 * POOLS)[first : first + len(arguments["spatial"])]
    pool_size, strides = zip(*pools, strict=True)
    content = tf.random.stateless_normal([2, 3, 4], [0, 0], dtype=tf.float64)
    options = {"dilation": arguments.pop("dilation", 1), "content": content}

    def pooled_last(*inputs):
        outputs = apply_position_lambdas(*inputs, "query_first", **options)
        return average_pool(outputs, pools)

    function = partial(
        apply_position_lambdas,
        strides=strides,
        pool_size=pool_size,
        **options,
    )
    inputs = [tf.constant(x) for x in random_case(6, **arguments)]
    assert_equal_with_gradients(function, pooled_last, inputs, 1e-10)


def test_auto_convolves_rows_on_a_tpu():
    """Only "auto": the blocked form by name is in blocks there too."""
    specs = [
        tf.TensorSpec(shape)
        for shape in ([32, 56, 56, 4, 16], [32, 56, 56, 32], [23, 23, 16])
    ]
    traced = tf.function(apply_position_lambdas, autograph=False)
    for implementation in ("auto", "blocked", "einsum"):
        with device.assume("TPU"):
            graph = traced.get_concrete_function(*specs, implementation).graph
        assert ("Conv2D" in {op.type for op in graph.get_operations()}) == (
            implementation == "auto"
        )


@pytest.mark.parametrize("implementation", kernels.IMPLEMENTATIONS)
def test_unknown_batch_height_and_width(implementation):
    """One traced function serves every size, also maps smaller than the scope."""
    traced = tf.function(
        lambda q, v, t: apply_position_lambdas(q, v, t, implementation),
        input_signature=[
            tf.TensorSpec([None, None, None, 2, 3]),
            tf.TensorSpec([None, None, None, 4]),
            tf.TensorSpec([5, 5, 3]),
        ],
        autograph=False,
    )
    for spatial in ([2, 2], [3, 7], [8, 4]):
        inputs = [tf.constant(x, tf.float32) for x in random_case(3, spatial, [5, 5])]
        expected = apply_position_lambdas(*inputs, implementation)
        assert_close(traced(*inputs), expected, 1e-5)


@pytest.mark.parametrize(
    ("implementation", "message"),
    [
        ("queryfirst", "'queryfirst'.*query_first"),
        ("depthwise_conv", "depthwise_conv must be one or two, got 3"),
    ],
)
def test_forms_that_do_not_exist(implementation, message):
    inputs = map(tf.constant, random_case(5, [2, 2, 2], [3, 3, 3]))
    with refused(message):
        apply_position_lambdas(*inputs, implementation)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks_give_the_same_values_and_gradients(size):
    rng = np.random.default_rng(7)
    inputs = [
        tf.constant(rng.normal(size=shape))
        for shape in ([5, 4, 2, 3], [5, 6, 2], [4, 3, 6])
    ]
    chunked = tf.function(
        lambda *x: in_chunks(products.query_first, *x, size), autograph=False
    )
    assert_equal_with_gradients(chunked, products.query_first, inputs, 1e-12)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_chunks_compile_with_an_unknown_batch(jit_compile):
    shapes = [4, 32, 32, 8, 2], [4, 32, 32, 2], [9, 9, 2]
    inputs = [tf.random.stateless_normal(shape, [8, 0]) / 8 for shape in shapes]
    sizes = Sizes(None, (32, 32), (32, 32), (9, 9), 8, 2, 2)
    assert Product(True, (16, 16)).chunk(sizes, device.DEVICES["CPU"])
    options = {"implementation": "blocked_query_first", "block": [16, 16]}
    traced = tf.function(
        lambda *x: apply_position_lambdas(*x, **options),
        input_signature=[tf.TensorSpec([None, *shape[1:]]) for shape in shapes[:2]]
        + [tf.TensorSpec([9, 9, 2])],
        jit_compile=jit_compile,
        autograph=False,
    )
    assert_equal_with_gradients(traced, apply_position_lambdas, inputs, 1e-4)


@pytest.mark.parametrize("implementation", ["einsum", "query_first", "blocked"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_sums_in_float32(dtype, implementation):
    """4096 ones add up to 4096, where sums in the dtype itself would stop at 2048 or 256.

    The table of a global scope over so long a sequence is read without one-hot rows, which would take 500 GB.
    """
    ones = [
        tf.ones(shape, dtype) for shape in ([1, 4096, 1, 1], [1, 4096, 1], [8191, 1])
    ]
    outputs = apply_position_lambdas(*ones, implementation, block=[1024])
    content = content_lambdas.apply_content_lambda(
        ones[0], ones[0], ones[0], normalization=None
    )
    for found in (outputs, content):
        np.testing.assert_array_equal(
            tf.cast(found, tf.float32), tf.fill([1, 4096, 1, 1], 4096.0)
        )


def test_both_ways_of_reading_a_table_agree(monkeypatch):
    table = tf.random.stateless_normal([7, 5, 3, 2], [0, 0])
    axes = [
        PairAxis(4, 5, strides=2, dilation=2),
        PairAxis(6, 9, strides=2, dilation=2),
    ]

    def by_gather(table):
        monkeypatch.setattr(relative_positions, "_LARGEST_ONE_HOT", 0)
        return relative_positions.expand_table(table, axes)

    by_product = partial(relative_positions.expand_table, axes=axes)
    assert_equal_with_gradients(by_product, by_gather, [table], 1e-5)
