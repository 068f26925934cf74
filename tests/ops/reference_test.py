# SPDX-License-Identifier: Apache-2.0
"""The paper's equations as einsums against the naive loop, and the fast forms against them."""

import numpy as np
import pytest
import tensorflow as tf
from naive_lambda import naive_lambda_layer, randomize, weights_by_name
from position_cases import CASES, random_case

import lambdanet
from lambdanet.backend import device
from lambdanet.ops import apply_content_lambda, apply_position_lambdas, reference
from lambdanet.ops.position_lambdas import IMPLEMENTATIONS

MASKS = ["none", "causal", "random"]


def mask_of(kind, n, m):
    if kind == "none":
        return None
    random = np.random.default_rng(9).integers(0, 2, [n, m])
    return np.tri(n, m) if kind == "causal" else random * (np.arange(n) != 1)[:, None]  # query 1 sees nothing


def flat(x, rank):
    return tf.reshape(x, [x.shape[0], -1, *x.shape[rank + 1 :]])


def reference_term(queries, values, table, strides=1, dilation=1, keys=None, mask=None):
    """`reference.apply_lambdas`, or its position term alone, on maps; [b, *query_size, h, v]."""
    rank = queries.ndim - 3
    if values.ndim == rank + 2:
        values, table = values[..., tf.newaxis], table[..., tf.newaxis]
    size = queries.shape[1 : rank + 1], values.shape[1 : rank + 1]
    embeddings = reference.gather_embeddings(table, *size, strides, dilation)
    if keys is None:
        outputs = reference.apply_position_lambdas(flat(queries, rank), flat(values, rank), embeddings)
    else:
        outputs = reference.apply_lambdas(flat(queries, rank), keys, flat(values, rank), embeddings, mask)
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
    ],
)
def test_reference_equals_naive_loop(size, options, mask):
    """With the projections of a layer that has no batch normalizations."""
    layer = lambdanet.LambdaLayer(4, num_heads=2, key_dim=3, use_batch_norm=False, **options, dtype="float64")
    x = np.random.default_rng(0).normal(size=[2, *size, 3])
    layer.build(x.shape)
    randomize(layer)
    n, u = np.prod(size), layer.intra_depth
    mask = mask_of(mask, n, n)
    mask = mask if mask is None else np.maximum(mask, np.eye(n))  # the loop is for queries that see something
    weights = weights_by_name(layer)
    queries, keys, values = (x @ weights[f"{name}/kernel"] for name in ("queries", "keys", "values"))
    table = tf.reshape(weights["position/table"], [*weights["position/table"].shape[: len(size)], 3, u])
    outputs = reference_term(
        tf.reshape(queries, [2, *size, 2, 3]),
        tf.reshape(values, [2, *size, 2, u]),
        table,
        dilation=layer.position.dilation,
        keys=tf.reshape(keys, [2, n, 3, u]),
        mask=mask,
    )
    expected = naive_lambda_layer(layer, x, mask=mask)
    np.testing.assert_allclose(tf.reshape(outputs, expected.shape), expected, atol=1e-10)


@pytest.mark.parametrize("kind", device.DEVICES)
@pytest.mark.parametrize(
    ("implementation", "case"),
    [
        (implementation, case)
        for implementation in ("auto", *IMPLEMENTATIONS)
        for case in CASES
        if case != "video" or "conv" not in implementation  # no kernel, or none for its gradient
    ],
)
def test_every_form_equals_the_reference(case, implementation, kind):
    """Outputs and gradients, on every kind of device."""
    arguments = dict(CASES[case])
    geometry = {name: arguments.pop(name) for name in ("strides", "dilation") if name in arguments}
    inputs = [tf.constant(x) for x in random_case(0, **arguments)]

    def outputs_and_gradients(function, **options):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs, **geometry, **options)
            loss = tf.reduce_sum(tf.sin(outputs))
        return [outputs, *tape.gradient(loss, inputs)]

    expected = outputs_and_gradients(reference_term)
    with device.assume(kind):
        results = outputs_and_gradients(apply_position_lambdas, implementation=implementation)
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, value, atol=1e-9)


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("u", [1, 2])
@pytest.mark.parametrize(
    ("mask", "strides"), [("none", 1), ("causal", 1), ("random", 1), ("none", 2), ("random", 2)]
)
def test_layer_equals_the_reference(u, mask, strides, kind):
    """A whole layer, with masks, strides and an intra-depth."""
    layer = lambdanet.LambdaLayer(
        4,
        num_heads=2,
        key_dim=3,
        intra_depth=u,
        scope=3,
        strides=strides,
        use_batch_norm=False,
        dtype="float64",
    )
    x = np.random.default_rng(1).normal(size=[2, 5, 4, 3])
    layer.build(x.shape)
    weights = weights_by_name(layer)
    kept = x[:, ::strides, ::strides]
    size = kept.shape[1:3]
    given = mask_of(mask, int(np.prod(size)), 20)
    expected = reference_term(
        tf.reshape(kept @ weights["queries/kernel"], [2, *size, 2, 3]),
        tf.reshape(x @ weights["values/kernel"], [2, 5, 4, 2, u]),
        tf.reshape(weights["position/table"], [3, 3, 3, u]),
        strides,
        keys=tf.reshape(x @ weights["keys/kernel"], [2, 20, 3, u]),
        mask=given,
    )
    with device.assume(kind):
        outputs = layer(x, mask="causal" if mask == "causal" else given)
    np.testing.assert_allclose(outputs, tf.reshape(expected, outputs.shape), atol=1e-9)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("u", [1, 2])
def test_content_lambda_equals_the_reference(u, mask):
    rng = np.random.default_rng(4)
    queries, keys, values = (
        tf.constant(rng.normal(size=size)) for size in ([2, 4, 2, 3], [2, 4, 3, u], [2, 4, 5, u])
    )
    given = mask_of(mask, 4, 4)
    expected = reference.apply_lambdas(queries, keys, values, tf.zeros([4, 4, 3, u], tf.float64), given)
    outputs = apply_content_lambda(queries, keys, values, mask="causal" if mask == "causal" else given)
    np.testing.assert_allclose(outputs, expected, atol=1e-10)
