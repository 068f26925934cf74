# SPDX-License-Identifier: Apache-2.0
"""Lambda layers on sequences of different lengths: padding masks, Keras's own masks, and statistics."""

import numpy as np
import pytest
import tensorflow as tf
from fuzzing import pairwise
from naive_layers import images

import lambdanet
from lambdanet.backend import device, keras
from lambdanet.errors import InputError

LENGTHS = np.array([8, 12])
VISIBLE = np.arange(12) < LENGTHS[:, np.newaxis]


def padded(padding=1e3):
    """Sequences of 8 and 12 positions, with large numbers in the padding."""
    return np.where(VISIBLE[..., np.newaxis], images(2, 12, 6), np.float32(padding))


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
    layer = lambdanet.LambdaLayer(8, num_heads=2, key_dim=3, **{"scope": 5, **options})
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
        np.testing.assert_allclose(masked[:, :shown], short, rtol=1e-4, atol=1e-5)
        for one, other in zip(*weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [bool, "int32", "float32"])
def test_padding_mask_equals_a_mask_per_example(dtype):
    layer = lambdanet.LambdaLayer(8, scope=5)
    x = images(2, 12, 6)
    pairs = np.broadcast_to(VISIBLE[:, np.newaxis], [2, 12, 12])
    expected = layer(x, mask=pairs)
    outputs = layer(x, padding_mask=VISIBLE.astype(dtype))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(
        layer(x, mask=np.tri(12), padding_mask=VISIBLE.astype(dtype).tolist()),
        layer(x, mask=np.tri(12) * pairs),
        atol=1e-5,
    )
    layer = lambdanet.LambdaLayer(8, scope=5, causal=True)
    outputs = layer(x, padding_mask=VISIBLE)
    np.testing.assert_allclose(outputs, layer(x, mask=pairs), atol=1e-5)


def test_padding_of_images_and_of_another_context():
    layer = lambdanet.LambdaLayer(8, scope=3)
    x = images(2, 4, 3, 6)
    x[:, 3:] = np.nan
    visible = np.tile(np.arange(12) < 9, [2, 1])
    outputs = layer(x, padding_mask=visible)[:, :3]
    np.testing.assert_allclose(outputs, layer(x[:, :3]), atol=1e-5)
    layer = lambdanet.LambdaLayer(8, position=None)
    queries = images(2, 5, 6)
    outputs = layer(queries, context=padded(), padding_mask=VISIBLE)
    np.testing.assert_allclose(
        outputs[:1], layer(queries[:1], context=padded()[:1, :8]), atol=1e-5
    )


def test_nothing_but_padding_is_finite_and_zero():
    layer = lambdanet.LambdaLayer(8, scope=5, strides=2, pool_size=3)
    nothing = np.zeros([2, 12], bool)
    for training in (False, True):
        outputs = layer(images(2, 12, 6), padding_mask=nothing, training=training)
        np.testing.assert_array_equal(outputs, np.zeros([2, 6, 8]))


def test_gradients_leave_padding_out():
    layer = lambdanet.LambdaLayer(8, scope=5)
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
    layer = lambdanet.LambdaLayer(8, scope=5, strides=2, pool_size=3)
    outputs = layer(embedding(inputs))
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(outputs))
    words = np.array([[1, 2, 3, 0, 0, 0], [3, 1, 4, 1, 5, 9], [0, 0, 0, 1, 1, 1]])
    maps = layer(embedding(words))
    shares = layer.visible_shares(words != 0, "float32")[:, :, 0, 0]
    np.testing.assert_array_equal(maps._keras_mask, shares > 0)
    expected = [
        y[seen].mean(0) for y, seen in zip(maps.numpy(), shares > 0, strict=True)
    ]
    np.testing.assert_allclose(model(words), expected, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_keras_are_padding_masks(tmp_path, causal):
    """Through a model of two layers, after saving, and in a graph; the loss leaves padding out, too."""
    inputs = keras.Input([None], dtype="int32")
    x = keras.layers.Embedding(10, 6, mask_zero=True)(inputs)
    for number in range(2):
        layer = lambdanet.LambdaLayer(
            8, num_heads=2, scope=3, causal=causal, name=f"lambda_{number}"
        )
        x = layer(x)
    model = keras.Model(inputs, x)
    words = np.array([[3, 1, 4, 0, 0, 0], [2, 7, 1, 8, 2, 8]])
    outputs = tf.function(model)(words)
    for i, length in ((0, 3), (1, 6)):
        short = model(words[i : i + 1, :length])
        np.testing.assert_allclose(outputs[i : i + 1, :length], short, atol=1e-5)
    model.save(tmp_path / "masked.keras")
    loaded = keras.models.load_model(tmp_path / "masked.keras")
    np.testing.assert_allclose(loaded(words), outputs, atol=1e-6)
    np.testing.assert_array_equal(model(words)._keras_mask, words != 0)
    targets = np.zeros([2, 6, 8])
    targets[0, 3:] = 1e9
    model.compile(loss="mse", run_eagerly=True)
    assert model.evaluate(words, targets, verbose=0) < 1e6


def test_keras_mask_of_outputs_is_that_of_the_positions_kept():
    x = keras.layers.Masking(mask_value=0.0)(padded(0.0))
    for options, expected in (
        ({}, VISIBLE),
        ({"strides": 3}, VISIBLE[:, ::3]),
        # Windows of 3 positions around every second one.
        ({"strides": 2, "pool_size": 3}, np.arange(6) < np.array([[4], [6]])),
    ):
        outputs = lambdanet.LambdaLayer(8, scope=3, **options)(x)
        np.testing.assert_array_equal(outputs._keras_mask, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding_mask": np.ones([2, 11])}, r"= \[2, 12\], got \(2, 11\)"),
        ({"padding_mask": np.ones([12])}, r"= \[2, 12\], got \(12,\)"),
        ({"padding_mask": np.ones([2, 12, 12])}, r"= \[2, 12\], got \(2, 12, 12\)"),
        ({"padding_mask": np.full([2, 12], 0.5)}, "or of 0 and 1 alone, got 'float64'"),
        ({"mask": np.ones([3, 12, 12])}, r"= \[2, 12, 12\], got \(3, 12, 12\)"),
    ],
)
def test_masks_that_are_refused(arguments, message):
    name = next(iter(arguments))
    with pytest.raises(InputError, match=f"^{name} must be .*{message}"):
        lambdanet.LambdaLayer(8)(images(2, 12, 6), **arguments)


def test_masks_of_keras_on_images_and_in_other_layers_are_refused():
    x = tf.constant(images(2, 4, 3, 6))
    x._keras_mask = tf.ones([2, 4], tf.bool)
    for layer in (lambdanet.LambdaLayer(8), lambdanet.HaloAttention(8, 2, 4)):
        with pytest.raises(InputError, match="takes no padding mask, such as that"):
            layer(x)
