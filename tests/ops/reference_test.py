# SPDX-License-Identifier: Apache-2.0
"""The paper's equations as einsums against the naive loop, and the fast forms against them."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_with_gradients
from naive_layers import naive_lambda_layer, randomize, weights_by_name
from position_cases import CASES, random_case

import lambdanet
from lambdanet.backend import device
from lambdanet.ops import (
    apply_content_lambda,
    apply_position_lambdas,
    causal_content,
    reference,
)
from lambdanet.ops.position_lambdas import IMPLEMENTATIONS
from lambdanet.ops.position_term import Geometry, PositionTerm
from lambdanet.ops.tpu.products import TpuProduct

MASKS = ["none", "triangle", "random", "examples"]


def mask_of(kind, n, m):
    if kind == "none":
        return None
    if kind == "examples":
        return np.random.default_rng(9).integers(0, 2, [2, n, m])
    random = np.random.default_rng(9).integers(0, 2, [n, m])
    # Query 1 sees nothing.
    return np.tri(n, m) if kind == "triangle" else random * (np.arange(n) != 1)[:, None]


def flat(x, rank):
    return tf.reshape(x, [x.shape[0], -1, *x.shape[rank + 1 :]])


def reference_term(
    queries, values, table, strides=1, dilation=1, keys=None, mask=None, axis=None
):
    """`reference.apply_lambdas`, or its position term alone, on maps; [b, *query_size, h, v]."""
    rank = queries.ndim - 3
    if values.ndim == rank + 2:
        values, table = values[..., tf.newaxis], table[..., tf.newaxis]
    size = queries.shape[1 : rank + 1], values.shape[1 : rank + 1]
    embeddings = reference.gather_embeddings(table, *size, strides, dilation, axis)
    if axis is not None:
        pairs = reference.causal_mask(*size, axis, strides)
        mask = pairs if mask is None else pairs & mask.astype(bool)
    if keys is None:
        outputs = reference.apply_position_lambdas(
            flat(queries, rank), flat(values, rank), embeddings
        )
    else:
        outputs = reference.apply_lambdas(
            flat(queries, rank), keys, flat(values, rank), embeddings, mask
        )
    return tf.reshape(outputs, [*queries.shape[:-1], -1])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ([7], {"scope": 5}),
        ([4, 3], {"scope": 3, "intra_depth": 2}),
        ([4, 3], {"scope": 3, "dilation": 2}),
        ([2, 3, 2], {"scope": 3}),
        ([3, 4], {"scope": None, "map_size": [3, 4]}),
        ([7], {"scope": 5, "causal": True}),
        ([3, 4], {"scope": (None, 3), "causal": "time"}),
        ([2, 3, 2], {"scope": 3, "dilation": (1, 2, 1), "causal": 2}),
    ],
)
def test_reference_equals_naive_loop(size, options, mask):
    """With the projections of a layer that has no batch normalizations."""
    layer = lambdanet.LambdaLayer(
        4, num_heads=2, key_dim=3, use_batch_norm=False, **options, dtype="float64"
    )
    x = np.random.default_rng(0).normal(size=[2, *size, 3])
    layer.build(x.shape)
    randomize(layer)
    n, u = np.prod(size), layer.intra_depth
    mask = mask_of(mask, n, n)
    weights = weights_by_name(layer)
    queries, keys, values = (
        x @ weights[f"{name}/kernel"] for name in ("queries", "keys", "values")
    )
    table = tf.reshape(
        weights["position/table"], [*weights["position/table"].shape[: len(size)], 3, u]
    )
    outputs = reference_term(
        tf.reshape(queries, [2, *size, 2, 3]),
        tf.reshape(values, [2, *size, 2, u]),
        table,
        dilation=layer.position.dilation,
        keys=tf.reshape(keys, [2, n, 3, u]),
        mask=mask,
        axis=layer.position.causal_axis,
    )
    expected = naive_lambda_layer(layer, x, mask=mask)
    np.testing.assert_allclose(
        tf.reshape(outputs, expected.shape), expected, atol=1e-10
    )


FORMS = [(name, None) for name in ("auto", *IMPLEMENTATIONS)]
FORMS += [
    (name, block) for name in ("blocked", "blocked_query_first") for block in (1, 2, 9)
]


def case_of(name):
    arguments = dict(CASES[name])
    geometry = {
        name: arguments.pop(name)
        for name in ("strides", "dilation")
        if name in arguments
    }
    return [tf.constant(x) for x in (*random_case(0, **arguments), CONTENT)], geometry


CONTENT = np.random.default_rng(1).normal(size=[2, 3, 4])


def with_content(queries, values, table, content, **geometry):
    return reference_term(queries, values, table, **geometry) + tf.einsum(
        "b...hk,bkv->b...hv", queries, content
    )


@pytest.mark.parametrize("kind", device.DEVICES)
@pytest.mark.parametrize(
    ("implementation", "block", "case"),
    [
        (implementation, block, case)
        for implementation, block in FORMS
        for case in CASES
        # No kernel, or none for its gradient.
        if len(CASES[case]["spatial"]) < 3 or "conv" not in implementation
    ],
)
def test_every_form_equals_the_reference(case, block, implementation, kind):
    """Outputs and gradients, with a content lambda, in blocks of any size, on every kind of device."""
    inputs, geometry = case_of(case)

    def compute(*inputs):
        options = {
            "block": block and [block] * (inputs[0].ndim - 3),
            "content": inputs[3],
            **geometry,
        }
        with device.assume(kind):
            return apply_position_lambdas(*inputs[:3], implementation, **options)

    assert_equal_with_gradients(
        compute, partial(with_content, **geometry), inputs, 1e-9
    )


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("query_first", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_products_on_a_tpu_equal_the_reference(case, query_first, block):
    inputs, geometry = case_of(case)

    def compute(queries, values, table, content):
        if values.ndim == queries.ndim - 1:
            values, table = values[..., None], table[..., None]
        form = TpuProduct(query_first, block and (block,) * (queries.ndim - 3))
        term = PositionTerm(queries, values, table, Geometry(**geometry), content)
        return form.apply(term, device.DEVICES["TPU"])

    assert_equal_with_gradients(
        compute, partial(with_content, **geometry), inputs, 1e-9
    )


@pytest.mark.parametrize("has_padding", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("u", [1, 2])
def test_content_lambda_equals_the_reference(u, mask, has_padding):
    rng = np.random.default_rng(4)
    queries, keys, values = (
        tf.constant(rng.normal(size=size))
        for size in ([2, 4, 2, 3], [2, 4, 3, u], [2, 4, 5, u])
    )
    given = mask_of(mask, 4, 4)
    padding_mask = np.array([[1, 1, 0, 0], [0, 1, 1, 1]], bool) if has_padding else None
    expected = reference.apply_lambdas(
        queries, keys, values, tf.zeros([4, 4, 3, u], tf.float64), given, padding_mask
    )
    if has_padding:  # as a layer gives them
        values *= padding_mask[..., np.newaxis, np.newaxis]
    inputs = queries, keys, values
    outputs = apply_content_lambda(*inputs, mask=given, padding_mask=padding_mask)
    np.testing.assert_allclose(outputs, expected, atol=1e-10)
    if mask == "triangle":
        outputs, _ = causal_content.apply(*inputs, padding_mask=padding_mask)
        np.testing.assert_allclose(outputs, expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["causal", "random"])
@pytest.mark.parametrize("known", [False, True])
def test_masked_softmax_is_exact_for_keys_of_any_size(kind, known):
    """In float32, beside float64: with a maximum over the whole context, small keys would vanish."""
    rng = np.random.default_rng(7)
    n = 33
    queries = rng.normal(size=[2, n, 2, 3])
    keys = rng.normal(size=[2, n, 3, 1]) * 30 + np.linspace(-500, 500, n)[:, None, None]
    values = rng.normal(size=[2, n, 4, 1])
    if kind == "causal":
        mask = np.tri(n)

        def apply(*inputs):
            return causal_content.apply(*inputs)[0]

    else:
        mask = mask_of(kind, n, n)
        apply = partial(apply_content_lambda, mask=mask)
    no_positions = np.zeros([n, n, 3, 1])
    inputs = [tf.constant(x) for x in (queries, keys, values)]
    call = tf.function(
        apply,
        input_signature=[
            tf.TensorSpec([2, n if known else None, *x.shape[2:]]) for x in inputs
        ],
        autograph=False,
    )
    assert_equal_with_gradients(
        lambda *inputs: tf.cast(
            call(*(tf.cast(x, tf.float32) for x in inputs)), tf.float64
        ),
        lambda *inputs: reference.apply_lambdas(*inputs, no_positions, mask),
        inputs,
        2e-5,
    )
