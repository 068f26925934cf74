# SPDX-License-Identifier: Apache-2.0
"""The lambda layer of LambdaUNet equals a loop over its queries in float64, and keeps Keras's contract."""

import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import images, product_error, relative_error
from naive_layers import randomize, weights_of

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models import complexity

SIZE = (4, 3, 5)
OPTIONS = {
    "paper": {"intra_depth": 4, "position_bias": True},
    "other scopes": {"scope": (5, 3), "slice_scope": 5, "use_batch_norm": False},
    "whole slices": {"scope": None, "slice_scope": 1},
    "multi-head": {"multi_head": True, "intra_depth": 2},
    "no content": {"content": False},
    "no positions within": {"position": None},
}


def make(**options):
    if options.get("position", "relative"):
        options = {"scope": 3, **options}
    layer = lambdanet.SliceLambdaLayer(8, num_heads=2, key_dim=3, **options)
    layer.build((None, *SIZE, 6))
    randomize(layer)
    return layer


def naive(layer, x):
    """One query and one context position at a time, from the equation in the layer's docstring."""
    weights = weights_of(layer)
    h, k, u = layer.num_heads, layer.key_dim, layer.intra_depth
    lambdas = h if layer.multi_head else 1
    b, slices, height, width, _ = x.shape

    def project(name, *shape):
        y = x.astype(np.float64) @ weights[f"{name}/kernel"]
        if f"{name}_norm/gamma" in weights:
            scale = weights[f"{name}_norm/gamma"] / np.sqrt(
                weights[f"{name}_norm/moving_variance"] + 1e-5
            )
            y = (y - weights[f"{name}_norm/moving_mean"]) * scale
            y = y + weights[f"{name}_norm/beta"]
        return y.reshape([b, slices, height, width, *shape])

    def table(name, sides):
        values = weights.get(f"{name}/table", np.zeros([lambdas, *sides, k, u]))
        return values.reshape([lambdas, *sides, k, u])

    queries = project("queries", h, k)
    values = project("values", lambdas, -1, u)
    content = np.zeros([b, slices, height, width, lambdas, k, u])
    if layer.content:
        content = np.exp(project("keys", lambdas, k, u))
        content /= content.sum(axis=(2, 3), keepdims=True)
    sides = [
        2 * side - 1 if r is None else r
        for r, side in zip(
            np.broadcast_to(np.array(layer.scope, object), 2), SIZE[1:], strict=True
        )
    ]
    within = table("position", sides)
    across = table("slice_position", [layer.slice_scope])
    bias = weights.get("position/bias", 0.0) + weights.get("slice_position/bias", 0.0)
    outputs = np.zeros([b, slices, height, width, h, values.shape[-2]])
    places = [*itertools.product(range(height), range(width))]
    for s, (i, j), head in itertools.product(range(slices), places, range(h)):
        number = head if layer.multi_head else 0
        total = np.zeros([b, k, values.shape[-2]])
        for row, column in places:
            weight = content[:, s, row, column, number].copy()
            y, z = row - i + sides[0] // 2, column - j + sides[1] // 2
            if 0 <= y < sides[0] and 0 <= z < sides[1]:
                weight += within[number, y, z]
            value = values[:, s, row, column, number]
            total += np.einsum("bku,bvu->bkv", weight, value)
        for other in range(slices):
            offset = other - s + layer.slice_scope // 2
            if 0 <= offset < layer.slice_scope:
                value = values[:, other, i, j, number]
                total += np.einsum("ku,bvu->bkv", across[number, offset], value)
        query = queries[:, s, i, j, head]
        outputs[:, s, i, j, head] = np.einsum("bk,bkv->bv", query, total)
        outputs[:, s, i, j, head] += (query * bias).sum(-1, keepdims=True)
    return outputs.reshape([b, slices, height, width, -1])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outputs_equal_a_loop_over_queries(options):
    layer = make(**options)
    x = images(2, *SIZE, 6)
    expected = naive(layer, x.numpy())
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(layer(x), expected, atol=tolerance)
    xla = tf.function(layer, jit_compile=True)(x)
    np.testing.assert_allclose(xla, expected, atol=tolerance)


def test_one_slice_is_a_lambda_layer_on_a_map():
    layer = make(slice_scope=1, position_bias=True)
    flat = lambdanet.LambdaLayer(8, 2, 3, scope=3, position_bias=True)
    flat.build((None, *SIZE[1:], 6))
    other = dict(zip([w.path for w in layer.weights], layer.get_weights(), strict=True))
    own = [value for path, value in other.items() if "slice_position" not in path]
    flat.set_weights(own)
    x = images(2, *SIZE, 6)
    layer.slice_position.set_weights(
        [np.zeros_like(w) for w in layer.slice_position.get_weights()]
    )
    expected = tf.stack([flat(x[:, s]) for s in range(SIZE[0])], axis=1)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_models_are_saved_folded_and_trained(tmp_path):
    layer = lambdanet.SliceLambdaLayer(8, num_heads=2, intra_depth=2, scope=(5, 3))
    inputs = keras.Input([None, None, None, 6])
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    for size in (SIZE, (2, 4, 3)):
        x = images(2, *size, 6)
        assert np.isfinite(model.train_on_batch(x, images(2, *size, 8)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    fast = lambdanet.for_inference(loaded)
    np.testing.assert_allclose(fast(x), model(x), rtol=1e-4, atol=1e-4)
    same = type(layer).from_config(layer.get_config())
    assert same.get_config() == layer.get_config()


def test_half_precision_stays_near_float32():
    layer = make(position_bias=True)
    half = lambdanet.SliceLambdaLayer.from_config(
        {**layer.get_config(), "dtype": "mixed_bfloat16"}
    )
    x = images(2, *SIZE, 6)
    half(x)
    half.set_weights(layer.get_weights())
    assert relative_error(half(x), layer(x)) < 20 * product_error("bfloat16")


def test_multiply_adds_count_the_positions_that_are_seen():
    inputs = keras.Input([*SIZE, 6])
    layer = lambdanet.SliceLambdaLayer(8, num_heads=2, key_dim=3, scope=3)
    model = keras.Model(inputs, layer(inputs))
    n, h, k, v = 60, 2, 3, 4
    projections = n * 6 * (h * k + k + v)
    # The content of a slice, 3x3 positions, and three slices at one place.
    lambdas = n * k * v * (1 + 9 + 3) + 3 * n * h * k * v
    assert complexity.count_flops(model) == 2 * (projections + lambdas)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal": "time"}, "causal of a SliceLambdaLayer must be False, got 'time'"),
        ({"strides": 2}, "strides of a SliceLambdaLayer must be 1, got 2"),
        ({"slice_scope": 4}, "slice_scope must be odd, got 4; 3 and 5 would do"),
        ({"scope": 4}, "scope must be odd"),
    ],
)
def test_other_arguments_are_refused(options, message):
    with pytest.raises(InputError, match=f"^{message}"):
        lambdanet.SliceLambdaLayer(8, **options)


def test_other_inputs_are_refused():
    layer = lambdanet.SliceLambdaLayer(8, slice_scope=5)
    message = "the number of slices must be at least 3 for slice_scope=5, got 2"
    with pytest.raises(InputError, match=f"^{message}$"):
        layer(images(1, 2, 4, 4, 6))
    shape = "must be [b, slices, h, w, c], got (1, 4, 4, 6)"
    with pytest.raises(InputError, match=re.escape(shape)):
        layer(images(1, 4, 4, 6))
    with pytest.raises(InputError, match="takes no context, mask or state"):
        layer(images(1, 3, 4, 4, 6), mask=np.ones([48, 48]))
