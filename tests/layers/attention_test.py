# SPDX-License-Identifier: Apache-2.0
"""The attention baselines, channel gates and centered pooling against loops, and their errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_with_gradients
from naive_layers import images, naive_attention, offsets_of, projected, weights_of
from scipy import special

import lambdanet
from lambdanet.backend import device
from lambdanet.errors import InputError
from lambdanet.ops import attention, content_lambdas


@pytest.mark.parametrize("options", [{}, {"map_size": (7, 5), "key_dim": 3}])
def test_global_attention_equals_the_loop(options):
    layer = lambdanet.GlobalAttention(8, num_heads=2, **options)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    expected = naive_attention(
        *projected(layer, x), offsets_of(layer, sum), lambda n, m: True
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_axial_attention_equals_two_loops():
    layer = lambdanet.AxialAttention(8, num_heads=2, key_dim=3, map_size=5)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
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
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("feature_map", ["softmax", "elu"])
def test_linear_attention_equals_its_attention_map(feature_map):
    layer = lambdanet.LinearAttention(
        8, num_heads=2, key_dim=3, feature_map=feature_map
    )
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    queries, keys, values = (
        part.reshape([2, 12, 2, -1]) for part in projected(layer, x)
    )
    if feature_map == "softmax":
        queries, keys = special.softmax(queries, -1), special.softmax(keys, 1)
    else:
        queries, keys = (
            np.where(part > 0, part, np.exp(part) - 1) + 1 for part in (queries, keys)
        )
    weights = np.einsum("bnhk,bmhk->bhnm", queries, keys)
    sums = weights.sum(axis=-1, keepdims=True)
    if feature_map == "softmax":
        np.testing.assert_allclose(sums, 1.0)
    expected = np.einsum("bhnm,bmhv->bnhv", weights / sums, values).reshape(
        [2, 3, 4, 8]
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_linear_attention_of_features_beyond_a_float_is_finite(scale):
    layer = lambdanet.LinearAttention(
        8, num_heads=2, feature_map="elu", dtype="mixed_float16"
    )
    outputs = layer(tf.constant(images(1, 9, 7, 8) * scale, tf.float16))
    assert np.isfinite(outputs).all()


def test_linear_attention_of_one_head_is_a_content_lambda():
    """Appendix D.3 of the paper."""
    layer = lambdanet.LinearAttention(8, num_heads=1, key_dim=3)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    queries, keys, values = (
        tf.constant(part.reshape([2, 12, 1, -1]), tf.float32)
        for part in projected(layer, x)
    )
    keys, values = tf.einsum("bmuk->bmku", keys), tf.einsum("bmuv->bmvu", values)
    content = content_lambdas.apply_content_lambda(tf.nn.softmax(queries), keys, values)
    np.testing.assert_allclose(
        outputs, tf.reshape(content, [2, 3, 4, 8]), rtol=1e-5, atol=1e-6
    )


def test_efficient_channel_attention_equals_the_loop():
    x = images(2, 3, 5, 7)
    layer = lambdanet.EfficientChannelAttention(kernel_size=5)
    outputs = layer(x.astype(np.float32))
    kernel, means = layer.kernel.numpy()[:, 0, 0], x.mean(axis=(1, 2))
    for c in range(7):
        near = [
            (kernel[i], means[:, c + i - 2]) for i in range(5) if 0 <= c + i - 2 < 7
        ]
        gate = 1 / (1 + np.exp(-sum(weight * mean for weight, mean in near)))
        np.testing.assert_allclose(
            outputs[..., c], x[..., c] * gate[:, None, None], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("channels", "size"), [(8, 3), (64, 3), (128, 5), (512, 5), (2048, 7)]
)
def test_size_of_its_kernel(channels, size):
    layer = lambdanet.EfficientChannelAttention()
    layer.build([None, None, None, channels])
    assert layer.kernel.shape == [size, 1, 1]


@pytest.mark.parametrize("kind", ["CPU", "RUNTIME_INT8"])
@pytest.mark.parametrize(
    ("size", "pool_size", "strides"),
    [((6, 7), 3, 2), ((5, 4), 5, 3), ((3, 2), 3, 1), ((2, 1), 7, 1)],
)
def test_centered_max_pooling_equals_the_loop(size, pool_size, strides, kind):
    """Of negative numbers, which a padding of zeros would hide."""
    x = images(2, *size, 3).astype(np.float32) - 10
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
    inputs = [tf.constant(images(*shape, seed=i)) for i, shape in enumerate(shapes)]
    assert_equal_with_gradients(attention.attend, formula, inputs, 1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: lambdanet.EfficientChannelAttention(4),
            "kernel_size must be odd, got 4; 3 and 5 would do",
        ),
        (lambda: lambdanet.CenteredMaxPooling2D(2), "pool_size must be odd, got 2"),
        (
            lambda: lambdanet.SqueezeExcite(multiple_of=0),
            "multiple_of must be a positive integer, got 0",
        ),
        (lambda: lambdanet.GlobalAttention(10), "filters=10 and num_heads=8"),
        (lambda: lambdanet.GlobalAttention(map_size=(7, 7, 7)), r"got \(7, 7, 7\)"),
        (
            lambda: lambdanet.AxialAttention(map_size=0),
            "map_size must be a positive integer, got 0",
        ),
        (
            lambda: lambdanet.LinearAttention(key_dim=0),
            "key_dim must be a positive integer, got 0",
        ),
        (
            lambda: lambdanet.LinearAttention(feature_map="relu"),
            "unknown feature map 'relu'",
        ),
        (
            lambda: lambdanet.LocalAttention(scope=8),
            "scope must be odd, got 8; 7 and 9 would do",
        ),
        (lambda: lambdanet.LocalAttention(key_dim=3), "key_dim must be even.* got 3"),
        (
            lambda: lambdanet.HaloAttention(8, 8, 7, strides=2, compact_offsets=True),
            "strides must divide",
        ),
        (
            lambda: lambdanet.HaloAttention(positions="summed"),
            "unknown positions 'summed'",
        ),
        (lambda: lambdanet.HaloAttention(8, key_dim=3), "key_dim must be even"),
        (
            lambda: lambdanet.HaloAttention(halo_size=-1),
            "halo_size must be an integer of at least 0, got -1",
        ),
        (
            lambda: lambdanet.HaloAttention(block_size=2.0),
            "block_size must be a positive integer, got 2.0",
        ),
        (
            lambda: lambdanet.HaloAttention(24, value_ratio=0.5),
            "value_ratio=0.5, filters=24 and num_heads=8",
        ),
        (
            lambda: lambdanet.HaloAttention(value_ratio=-1),
            "value_ratio must be a positive number, got -1",
        ),
    ],
)
def test_arguments_that_are_rejected(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "inputs", "message"),
    [
        (
            lambdanet.LinearAttention(8),
            tf.ones([2, 8]),
            r"input of LinearAttention must be .* got \(2, 8\)",
        ),
        (
            lambdanet.LocalAttention(8),
            keras.Input([4, 4, None]),
            "known number of channels",
        ),
        (
            lambdanet.HaloAttention(),
            tf.ones([1, 4, 4, 10]),
            "filters=10 and num_heads=8",
        ),
        (
            lambdanet.HaloAttention(8),
            tf.ones([1, 4, 4, 10]),
            "key_dim must be even.* got 1;",
        ),
        (
            lambdanet.AxialAttention(8),
            keras.Input([None, 4, 8]),
            "known height and .*; or set map_size of",
        ),
        (
            lambdanet.GlobalAttention(8, map_size=4),
            tf.ones([1, 4, 5, 8]),
            "width .* at most 4, .* got 5",
        ),
    ],
)
def test_inputs_that_are_rejected(layer, inputs, message):
    with pytest.raises(InputError, match=message):
        layer(inputs)


def test_a_map_that_turns_out_too_large_is_rejected():
    layer = tf.function(
        lambdanet.GlobalAttention(8, map_size=4),
        input_signature=[tf.TensorSpec([1, None, None, 8])],
    )
    layer(tf.ones([1, 4, 3, 8]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="height is larger than in map_size"
    ):
        layer(tf.ones([1, 5, 3, 8]))
