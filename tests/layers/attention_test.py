# SPDX-License-Identifier: Apache-2.0
"""The attention baselines, channel gates and centered pooling against loops, and their errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, assert_equal_with_gradients
from naive_layers import images, naive_attention, offsets_of, projected, weights_of
from refusals import refused
from scipy import special

import lambdanet
from lambdanet.backend import device
from lambdanet.core.errors import InputError
from lambdanet.ops import attention


@pytest.mark.parametrize("options", [{}, {"map_size": (7, 5), "key_dim": 3}])
def test_global_attention_equals_the_loop(options):
    layer = lambdanet.GlobalAttention(8, num_heads=2, **options)
    x = images(2, 3, 4, 6)
    outputs = layer(x)
    expected = naive_attention(
        *projected(layer, x), offsets_of(layer, sum), lambda n, m: True
    )
    assert_close(outputs, expected, 1e-5)


def test_axial_attention_equals_two_loops():
    layer = lambdanet.AxialAttention(8, num_heads=2, key_dim=3, map_size=5)
    x = images(2, 3, 4, 6)
    outputs = layer(x)
    rows, columns = weights_of(layer)["height_table"], weights_of(layer)["width_table"]
    along_height = naive_attention(
        *projected(layer, x, "height_"),
        lambda dy, dx: rows[dy + 4],
        lambda n, m: n[1] == m[1],
    )
    expected = naive_attention(
        *projected(layer, along_height, "width_"),
        lambda dy, dx: columns[dx + 4],
        lambda n, m: n[0] == m[0],
    )
    assert_close(outputs, expected, 1e-5)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("feature_map", ["softmax", "elu"])
def test_linear_attention_equals_its_attention_map(feature_map, num_heads):
    """Of one head it is a content lambda, as in appendix D.3 of the paper; see reference_test."""
    layer = lambdanet.LinearAttention(8, num_heads, key_dim=3, feature_map=feature_map)
    x = images(2, 3, 4, 6)
    outputs = layer(x)
    queries, keys, values = (
        part.reshape([2, 12, num_heads, -1]) for part in projected(layer, x)
    )
    if feature_map == "softmax":
        queries, keys = special.softmax(queries, -1), special.softmax(keys, 1)
    else:
        queries, keys = (np.where(x > 0, x + 1, np.exp(x)) for x in (queries, keys))
    weights = np.einsum("bnhk,bmhk->bhnm", queries, keys)
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("bhnm,bmhv->bnhv", weights, values)
    expected = expected.reshape([2, 3, 4, 8])
    assert_close(outputs, expected, 1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_linear_attention_of_features_beyond_a_float_is_finite(scale):
    layer = lambdanet.LinearAttention(
        8, num_heads=2, feature_map="elu", dtype="mixed_float16"
    )
    outputs = layer(tf.constant(images(1, 9, 7, 8) * scale, tf.float16))
    assert np.isfinite(outputs).all()


def test_efficient_channel_attention_equals_the_loop():
    x = images(2, 3, 5, 7)
    layer = lambdanet.EfficientChannelAttention(kernel_size=5)
    outputs = layer(x)
    kernel, means = layer.kernel.numpy()[:, 0, 0], x.mean(axis=(1, 2))
    for c in range(7):
        near = [
            (kernel[i], means[:, c + i - 2]) for i in range(5) if 0 <= c + i - 2 < 7
        ]
        gate = 1 / (1 + np.exp(-sum(weight * mean for weight, mean in near)))
        assert_close(outputs[..., c], x[..., c] * gate[:, None, None], 1e-5)


@pytest.mark.parametrize("kind", ["CPU", "RUNTIME_INT8"])
@pytest.mark.parametrize(
    ("size", "pool_size", "strides"),
    [((6, 7), 3, 2), ((5, 4), 5, 3), ((3, 2), 3, 1), ((2, 1), 7, 1)],
)
def test_centered_max_pooling_equals_the_loop(size, pool_size, strides, kind):
    """Of negative numbers, which a padding of zeros would hide."""
    x = images(2, *size, 3) - 10
    layer = lambdanet.CenteredMaxPooling2D(pool_size, strides)
    with device.assume(kind):
        outputs = layer(x)
    assert outputs.shape == layer.compute_output_shape(x.shape)
    reach = pool_size // 2
    for i, j in np.ndindex(*outputs.shape[1:3]):
        rows, columns = (
            slice(max(0, strides * n - reach), strides * n + reach + 1) for n in (i, j)
        )
        np.testing.assert_array_equal(
            outputs[:, i, j], x[:, rows, columns].max(axis=(1, 2))
        )


def test_gradient_of_attend_equals_that_of_its_formula():
    def formula(queries, keys, values, bias):
        return tf.nn.softmax(tf.einsum("gnk,gmk->gnm", queries, keys) + bias) @ values

    shapes = ([3, 4, 2], [3, 5, 2], [3, 5, 6], [3, 4, 5])
    inputs = [
        tf.cast(images(*shape, seed=i), tf.float64) for i, shape in enumerate(shapes)
    ]
    assert_equal_with_gradients(attention.attend, formula, inputs, 1e-12)


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        ("CenteredMaxPooling2D", {"pool_size": 2}, "odd, got 2; 1 and 3 would do"),
        ("GlobalAttention", {"filters": 10}, "filters=10 and num_heads=8"),
        ("GlobalAttention", {"map_size": (7, 7, 7)}, r"2 here, got \(7, 7, 7\)"),
        ("LocalAttention", {"key_dim": 3}, "key_dim must be even.* got 3"),
        (
            "HaloAttention",
            {"block_size": 7, "strides": 2, "compact_offsets": True},
            "strides must divide",
        ),
        (
            "HaloAttention",
            {"filters": 24, "value_ratio": 0.5},
            "value_ratio=0.5, filters=24 and num_heads=8",
        ),
    ],
)
def test_arguments_that_are_rejected(layer, arguments, message):
    with refused(message):
        getattr(lambdanet, layer)(**arguments)


@pytest.mark.parametrize(
    ("layer", "arguments", "shape", "message"),
    [
        ("LocalAttention", {}, [4, 4, None], "known number of channels"),
        ("HaloAttention", {"filters": 8}, [4, 4, 10], "key_dim must be even.* got 1;"),
        ("AxialAttention", {}, [None, 4, 8], "known height and .*; or set map_size of"),
    ],
)
def test_inputs_that_are_rejected(layer, arguments, shape, message):
    with refused(message):
        getattr(lambdanet, layer)(**arguments)(keras.Input(shape))


def test_a_map_that_turns_out_too_large_is_rejected():
    layer = lambdanet.GlobalAttention(8, map_size=4)
    with pytest.raises(InputError, match="width .* at most 4, .* got 5"):
        layer(tf.ones([1, 4, 5, 8]))
    layer = tf.function(layer, input_signature=[tf.TensorSpec([1, None, None, 8])])
    layer(tf.ones([1, 4, 3, 8]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="height is larger than in map_size"
    ):
        layer(tf.ones([1, 5, 3, 8]))
