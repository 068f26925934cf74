# SPDX-License-Identifier: Apache-2.0
"""The attention baselines against loops over pairs of positions, and as special cases of lambdas."""

import keras as keras_3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from naive_attention import images, naive_attention, projected, weights_of

import lambdanet
from lambdanet.errors import InputError
from lambdanet.ops import attention, content_lambdas


@pytest.mark.parametrize("options", [{}, {"map_size": (7, 5), "key_dim": 3}])
def test_global_attention_equals_the_loop(options):
    layer = lambdanet.GlobalAttention(8, num_heads=2, **options)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    rows, columns = weights_of(layer)["height_table"], weights_of(layer)["width_table"]
    expected = naive_attention(
        *projected(layer, x),
        lambda dy, dx: rows[dy + len(rows) // 2] + columns[dx + len(columns) // 2],
        lambda n, m: True,
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_axial_attention_equals_two_loops():
    layer = lambdanet.AxialAttention(8, num_heads=2, key_dim=3, map_size=5)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    rows, columns = weights_of(layer)["height_table"], weights_of(layer)["width_table"]
    along_height = naive_attention(
        *projected(layer, x, "height_"), lambda dy, dx: rows[dy + 4], lambda n, m: n[1] == m[1]
    )
    expected = naive_attention(
        *projected(layer, along_height, "width_"),
        lambda dy, dx: columns[dx + 4],
        lambda n, m: n[0] == m[0],
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def softmax(x, axis):
    return np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("feature_map", ["softmax", "elu"])
def test_linear_attention_equals_its_attention_map(feature_map):
    layer = lambdanet.LinearAttention(8, num_heads=2, key_dim=3, feature_map=feature_map)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    queries, keys, values = (part.reshape([2, 12, 2, -1]) for part in projected(layer, x))
    if feature_map == "softmax":
        queries, keys = softmax(queries, -1), softmax(keys, 1)
    else:
        queries, keys = (np.where(part > 0, part, np.exp(part) - 1) + 1 for part in (queries, keys))
    weights = np.einsum("bnhk,bmhk->bhnm", queries, keys)
    sums = weights.sum(axis=-1, keepdims=True)
    if feature_map == "softmax":
        np.testing.assert_allclose(sums, 1.0)
    expected = np.einsum("bhnm,bmhv->bnhv", weights / sums, values).reshape([2, 3, 4, 8])
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_linear_attention_of_features_beyond_a_float_is_finite(scale):
    layer = lambdanet.LinearAttention(8, num_heads=2, feature_map="elu", dtype="mixed_float16")
    outputs = layer(tf.constant(images(1, 9, 7, 8) * scale, tf.float16))
    assert np.isfinite(outputs).all()


def test_linear_attention_of_one_head_is_a_content_lambda():
    """Appendix D.3 of the paper."""
    layer = lambdanet.LinearAttention(8, num_heads=1, key_dim=3)
    x = images(2, 3, 4, 6)
    outputs = layer(x.astype(np.float32))
    queries, keys, values = (
        tf.constant(part.reshape([2, 12, 1, -1]), tf.float32) for part in projected(layer, x)
    )
    keys, values = tf.einsum("bmuk->bmku", keys), tf.einsum("bmuv->bmvu", values)
    content = content_lambdas.apply_content_lambda(tf.nn.softmax(queries), keys, values)
    np.testing.assert_allclose(outputs, tf.reshape(content, [2, 3, 4, 8]), rtol=1e-5, atol=1e-6)


def apply_lambda(queries, content_lambda):
    """Applies a given lambda [b, k, v] to [b, n, k]: keys are the unit vectors, values its rows."""
    units = tf.eye(content_lambda.shape[1], batch_shape=[content_lambda.shape[0]])
    return content_lambdas.apply_content_lambda(
        queries[:, :, tf.newaxis], units[..., tf.newaxis], content_lambda[..., tf.newaxis], normalization=None
    )[:, :, 0]


def test_channel_attention_is_a_shared_diagonal_lambda():
    """Appendix D.4: squeeze-and-excitation scales channel k by w_k, which is lambda = diag(w)."""
    layer = lambdanet.SqueezeExcite(0.5)
    x = tf.constant(images(2, 3, 4, 6), tf.float32)
    expected = layer(x)
    gate = (expected / x)[:, 0, 0]
    outputs = apply_lambda(tf.reshape(x, [2, 12, 6]), tf.linalg.diag(gate))
    np.testing.assert_allclose(tf.reshape(outputs, x.shape), expected, rtol=1e-4, atol=1e-6)


def test_spatial_attention_is_a_scalar_lambda_of_each_position():
    """Appendix D.4: a gate w_n for position n is lambda_n = w_n I."""
    x = tf.constant(images(2, 3, 4, 6), tf.float32)
    gate = keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)
    scalars = tf.reshape(gate, [24, 1, 1]) * tf.eye(6)  # every position is an example of its own
    outputs = apply_lambda(tf.reshape(x, [24, 1, 6]), scalars)
    np.testing.assert_allclose(tf.reshape(outputs, x.shape), x * gate, rtol=1e-6)


def test_gradient_of_attend_equals_that_of_its_formula():
    shapes = ([3, 4, 2], [3, 5, 2], [3, 5, 6], [3, 4, 5])
    inputs = [tf.constant(images(*shape, seed=i)) for i, shape in enumerate(shapes)]

    def formula(queries, keys, values, bias):
        return tf.nn.softmax(tf.einsum("gnk,gmk->gnm", queries, keys) + bias) @ values

    upstream = images(3, 4, 6, seed=9)
    results = []
    for function in (attention.attend, formula):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
        results.append([outputs, *tape.gradient(outputs, inputs, upstream)])
    for result, expected in zip(*results, strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-12)


LAYERS = {
    "global": lambda **kwargs: lambdanet.GlobalAttention(4, num_heads=2, map_size=9, **kwargs),
    "axial": lambda **kwargs: lambdanet.AxialAttention(4, num_heads=2, map_size=9, **kwargs),
    "local": lambda **kwargs: lambdanet.LocalAttention(4, num_heads=2, scope=3, block_size=2, **kwargs),
    "halo": lambda **kwargs: lambdanet.HaloAttention(4, num_heads=2, block_size=2, halo_size=1, **kwargs),
    "linear": lambda **kwargs: lambdanet.LinearAttention(4, num_heads=2, **kwargs),
    "linear elu": lambda **kwargs: lambdanet.LinearAttention(4, num_heads=2, feature_map="elu", **kwargs),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_equal_finite_differences(name):
    layer = LAYERS[name](dtype="float64")
    x = tf.constant(images(1, 3, 2, 3))
    layer(x)
    weights = layer.trainable_weights

    def loss(x, *values):
        for weight, value in zip(weights, values, strict=True):
            weight.assign(value)
        return tf.reduce_sum(tf.square(layer(x)))

    points = [x, *(tf.constant(weight.numpy()) for weight in weights)]
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = loss(*points)
    gradients = tape.gradient(total, [x, *weights])
    directions = [images(*point.shape, seed=i) for i, point in enumerate(points)]
    step = 1e-6
    above, below = (
        loss(*(p + sign * step * d for p, d in zip(points, directions, strict=True))) for sign in (1, -1)
    )
    slope = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6)


def outputs_and_gradients(layer, x):
    """In float32, of the sum of squares by the input and by every weight."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.cast(layer(x), tf.float32)
        loss = tf.reduce_sum(tf.square(outputs))
    return [outputs, *tape.gradient(loss, [x, *layer.trainable_weights])]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_is_near_float32_and_finite(name, dtype):
    keras.utils.set_random_seed(0)
    x = tf.constant(images(1, 9, 7, 4), tf.float32)
    full, half = LAYERS[name](), LAYERS[name](dtype=f"mixed_{dtype}")
    full.build(x.shape)
    half.build(x.shape)
    half.set_weights(full.get_weights())
    tolerance = {"float16": 5e-3, "bfloat16": 4e-2}[dtype]
    for result, expected in zip(outputs_and_gradients(half, x), outputs_and_gradients(full, x), strict=True):
        assert np.linalg.norm(result - expected) < tolerance * np.linalg.norm(expected)
    assert np.isfinite(tf.cast(half(100.0 * x), tf.float32)).all()


@pytest.mark.parametrize("name", LAYERS)
def test_regularizer_counts_the_kernels_and_no_table(name):
    layer = LAYERS[name](kernel_regularizer=keras.regularizers.L2(0.5))
    layer(tf.ones([1, 4, 4, 4]))
    kernels = [weight for weight in layer.trainable_weights if "kernel" in weight.name]
    assert len(kernels) == (6 if name == "axial" else 3)
    np.testing.assert_allclose(sum(layer.losses), sum(map(tf.nn.l2_loss, kernels)), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lambdanet.GlobalAttention(10), "filters=10 and num_heads=8"),
        (lambda: lambdanet.GlobalAttention(map_size=(7, 7, 7)), r"got \(7, 7, 7\)"),
        (lambda: lambdanet.AxialAttention(map_size=0), "map_size must be a positive integer, got 0"),
        (lambda: lambdanet.LinearAttention(key_dim=0), "key_dim must be a positive integer, got 0"),
        (lambda: lambdanet.LinearAttention(feature_map="relu"), "unknown feature map 'relu'"),
        (lambda: lambdanet.LocalAttention(scope=8), "scope must be odd, got 8; 7 and 9 would do"),
        (lambda: lambdanet.LocalAttention(key_dim=3), "key_dim must be even.* got 3"),
        (lambda: lambdanet.HaloAttention(halo_size=-1), "halo_size must be an integer of at least 0, got -1"),
        (lambda: lambdanet.HaloAttention(block_size=2.0), "block_size must be a positive integer, got 2.0"),
        (lambda: lambdanet.HaloAttention(24, value_ratio=0.5), "value_ratio=0.5, filters=24 and num_heads=8"),
        (lambda: lambdanet.HaloAttention(value_ratio=-1), "value_ratio must be a positive number, got -1"),
    ],
)
def test_arguments_that_are_rejected(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_inputs_that_are_rejected():
    with pytest.raises(
        InputError, match=r"the shape of the input of LinearAttention must be .* got \(2, 8\)"
    ):
        lambdanet.LinearAttention(8)(tf.ones([2, 8]))
    with pytest.raises(InputError, match="known number of channels"):
        lambdanet.LocalAttention(8)(keras.Input([4, 4, None]))
    with pytest.raises(InputError, match="filters=10 and num_heads=8"):
        lambdanet.HaloAttention()(tf.ones([1, 4, 4, 10]))
    with pytest.raises(InputError, match="key_dim must be even.* got 1;"):
        lambdanet.HaloAttention(8)(tf.ones([1, 4, 4, 10]))
    with pytest.raises(
        InputError, match="of known height and width, got .*; or set map_size of AxialAttention"
    ):
        lambdanet.AxialAttention(8)(keras.Input([None, 4, 8]))
    with pytest.raises(
        InputError, match=r"the width of the map must be at most 4, .* map_size=\(4, 4\) .* got 5"
    ):
        lambdanet.GlobalAttention(8, map_size=4)(tf.ones([1, 4, 5, 8]))
    with pytest.raises(InputError, match="an input of GlobalAttention is a Keras 3"):
        lambdanet.GlobalAttention(8)(keras_3.Input([4, 4, 8]))


def test_a_map_that_turns_out_too_large_is_rejected():
    layer = tf.function(
        lambdanet.GlobalAttention(8, map_size=4), input_signature=[tf.TensorSpec([1, None, None, 8])]
    )
    layer(tf.ones([1, 4, 3, 8]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="height is larger than in map_size"):
        layer(tf.ones([1, 5, 3, 8]))
