# SPDX-License-Identifier: Apache-2.0
"""Half precision: means and sums of large maps, clipped queries and values, and channel scales.

The oracles are NumPy in float64.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, assert_near, images, randomize_normalizations

import lambdanet
from lambdanet import LambdaLayer
from lambdanet import backend as K
from lambdanet.backend import compat
from lambdanet.explain import networks
from lambdanet.ops import pooling

HALVES = ["float16", "bfloat16"]
# Means whose sums overflow float16, or lose small terms in it.
MAPS = {
    "large map": images(1, 512, 512, 4) / 8 + 1,
    "large numbers": images(1, 56, 56, 4) + 24,
    "odd sides": images(1, 37, 251, 4) + 3,
}


def halved(x, dtype):
    """Returns numbers as they are in half precision, in float64."""
    return np.asarray(tf.cast(tf.cast(x, dtype), tf.float64))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gate_of(layer, means):
    """Returns the gates of squeeze-and-excitation, or by a convolution over channels."""
    weights = [np.asarray(weight, "float64") for weight in layer.get_weights()]
    if isinstance(layer, lambdanet.SqueezeExcite):
        w1, b1, w2, b2 = weights
        return sigmoid(np.maximum(means @ w1 + b1, 0) @ w2 + b2)
    kernel = weights[0][:, 0, 0]
    return sigmoid(np.stack([np.convolve(row, kernel[::-1], "same") for row in means]))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", MAPS)
def test_means_of_half_maps_equal_those_of_numpy(kind, dtype):
    policy = f"mixed_{dtype}"
    x = halved(MAPS[kind], dtype)
    means = x.mean((1, 2))
    tolerance = 2e-3 if dtype == "float16" else 2e-2
    norm = lambdanet.PooledBatchNormalization(dtype=policy)
    assert_close(norm(x)[1], means / 1.001**0.5, tolerance)
    for layer in (
        lambdanet.SqueezeExcite(1.0, dtype=policy),
        lambdanet.EfficientChannelAttention(dtype=policy),
    ):
        outputs = layer(x)
        assert_close(outputs, x * gate_of(layer, means)[:, None, None], tolerance)
    half = K.cast(x, dtype)
    assert_close(K.mean(half, [1, 2]), means, tolerance)
    small = half / 64
    assert_close(K.sum(small, axis=1), halved(small, dtype).sum(1), tolerance)


def test_grad_cam_of_large_half_maps():
    x = tf.cast(MAPS["large map"], tf.float16)
    i = keras.Input(x.shape[1:], dtype="float16")
    pool = keras.layers.GlobalAveragePooling2D(dtype="float32")
    head = keras.Model(i, 512**2 * pool(i))  # slopes of 1
    found = networks.evidence(head, x, np.float32([[1, 0, 0, 0]]))
    assert_close(found, halved(x, "float16")[..., 0], 2e-3)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", HALVES)
def test_windows_of_large_numbers_have_their_mean(rank, dtype):
    x = K.cast(np.full([1, *[5] * rank, 2], 40_000.0), dtype)
    means = [pooling.mean(x, [3] * rank, [2] * rank)]
    if rank == 2:
        means.append(compat.AveragePooling2D(3, 2, "same", dtype=dtype)(x))
    for found in means:
        assert_close(halved(found, dtype), halved(x, dtype).max(), 1e-3)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_float16_clips_a_layer_and_its_copy_alike(num_heads):
    i = keras.Input([6, 6, 8])
    layer = LambdaLayer(8, num_heads, scope=3, dtype="float16")
    model = keras.Model(i, layer(i))
    randomize_normalizations(model)
    fast = lambdanet.for_inference(model)
    assert np.abs(np.asarray(layer._queries(100 * images(1, 6, 6, 8)))).max() > 46
    x = 100 * images(2, 6, 6, 8)
    for copy in (fast, lambdanet.for_inference(fast), keras.models.clone_model(fast)):
        copy.set_weights(fast.get_weights())
        assert_near(copy(x), np.asarray(model(x), "float32"), 5e-3)


@pytest.mark.parametrize("dtype", HALVES)
def test_channel_scales_are_those_of_a_normalization(dtype):
    """The offset of a channel with a mean of 1000 is as large as its product."""
    i = keras.Input([4, 4, 3], dtype=dtype)
    norm = keras.layers.BatchNormalization(dtype=f"mixed_{dtype}")
    model = keras.Model(i, norm(i))
    means = [1000, 0, -300]
    norm.set_weights([*np.float32([[1] * 3, [0] * 3, means, [7] * 3])])
    fast = lambdanet.for_inference(model)
    assert any(isinstance(part, lambdanet.ChannelAffine) for part in fast.layers)
    x = halved(images(2, 4, 4, 3) * 8 + means, dtype)
    assert_close(fast(x), (x - means) / 7.001**0.5, 1e-2)
