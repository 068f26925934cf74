# SPDX-License-Identifier: Apache-2.0
"""Lambda layers on sequences of different lengths: padding masks, Keras's own masks, and statistics."""

import numpy as np
import pytest
import tensorflow as tf
from fuzzing import pairwise
from helpers import assert_close, assert_equal_arrays
from naive_layers import images
from numpy.testing import assert_array_equal
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer
from lambdanet.backend import device, keras
from lambdanet.layers.old_arguments import translate

LENGTHS = np.array([8, 12])
VISIBLE = np.arange(12) < LENGTHS[:, np.newaxis]


def padded(padding=np.nan):
    """Sequences of 8 and 12 positions, with what is no number in the padding."""
    return np.where(VISIBLE[..., np.newaxis], images(2, 12, 6), padding)


OPTIONS = [
    {},
    {"strides": 2, "pool_size": 3, "position_bias": True},
    {"strides": 3},
    {"intra_depth": 2, "multi_head": True},
    {"position": None},
    {"content": False},
    {"scope": None, "map_size": 12},
    {"position": "unstructured"},
    {"key_normalization": "l2"},
    {"key_normalization": None, "query_normalization": "softmax"},
]


@pytest.mark.parametrize(
    ("options", "training", "kind"), pairwise(OPTIONS, [False, True], ["CPU", "TPU"])
)
def test_padded_sequences_equal_their_shorter_forms(options, training, kind):
    """Also in training, where a batch of one sequence has the statistics of what is no padding."""
    layer = LambdaLayer(8, num_heads=2, key_dim=3, **translate({"scope": 5, **options}))
    x = padded()
    layer(x)
    start = layer.get_weights()
    for i, length in enumerate(LENGTHS):
        outputs, weights = [], []
        for inputs, mask in (
            (x[i : i + 1], VISIBLE[i : i + 1]),
            (x[i : i + 1, :length], None),
        ):
            layer.set_weights(start)
            with device.assume(kind):
                outputs.append(layer(inputs, padding_mask=mask, training=training))
            weights.append(layer.get_weights())
        shown = -(-length // layer.strides)
        masked, short = outputs
        assert_close(masked[:, :shown], short, 1e-4)
        assert_equal_arrays(*weights, rtol=1e-4, atol=1e-5)


def test_nothing_but_padding_is_finite_and_zero():
    layer = LambdaLayer(8, scope=5, strides=2, pool_size=3)
    nothing = np.zeros([2, 12], bool)
    for training in (False, True):
        outputs = layer(images(2, 12, 6), padding_mask=nothing, training=training)
        assert_array_equal(outputs, np.zeros([2, 6, 8]))


def test_gradients_leave_padding_out():
    layer = LambdaLayer(8, scope=5)
    x = tf.constant(padded(1.0))
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, padding_mask=VISIBLE, training=True)
        loss = tf.reduce_sum(outputs[0, :8] ** 2) + tf.reduce_sum(outputs[1] ** 3)
    gradient = tape.gradient(loss, x).numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[~VISIBLE].any()
    assert gradient[VISIBLE].any()


def test_mask_of_keras_goes_through_pools_of_a_graph():
    inputs = keras.Input([6], dtype="int32")
    embedding = keras.layers.Embedding(10, 8, mask_zero=True)
    layer = LambdaLayer(8, scope=5, strides=2, pool_size=3)
    outputs = layer(embedding(inputs))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(outputs))
    words = np.array([[1, 2, 3, 0, 0, 0], [3, 1, 4, 1, 5, 9], [0, 0, 0, 1, 1, 1]])
    maps = layer(embedding(words))
    # Windows of 3 positions around every second one.
    seen = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    assert_array_equal(maps._keras_mask, seen)
    expected = [np.average(y, 0, row) for y, row in zip(maps, seen, strict=True)]
    assert_close(model(words), expected, 1e-6)


def test_keras_mask_of_outputs_is_that_of_the_positions_kept():
    x = keras.layers.Masking(mask_value=0.0)(padded(0.0))
    for options, expected in (
        ({}, VISIBLE),
        ({"strides": 3}, VISIBLE[:, ::3]),
    ):
        outputs = LambdaLayer(8, scope=3, **options)(x)
        assert_array_equal(outputs._keras_mask, expected)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones([2, 11]), r"= \[2, 12\], got \(2, 11\)"),
        (np.ones([2, 12, 12]), r"= \[2, 12\], got \(2, 12, 12\)"),
        (np.full([2, 12], 0.5), "or of 0 and 1 alone, got 'float64'"),
    ],
)
def test_masks_that_are_refused(mask, message):
    with refused(f"^padding_mask must be .*{message}"):
        LambdaLayer(8)(images(2, 12, 6), padding_mask=mask)


def test_masks_of_keras_on_images_and_in_other_layers_are_refused():
    x = tf.constant(images(2, 4, 3, 6))
    x._keras_mask = tf.ones([2, 4], tf.bool)
    for layer in (LambdaLayer(8), lambdanet.HaloAttention(8, 2, 4)):
        with refused("takes no padding mask, such as that"):
            layer(x)
