# SPDX-License-Identifier: Apache-2.0
"""Networks for volumes have the outputs of networks for pictures on equal slices, and can be trained."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_near, images, randomize_normalizations, reloaded
from refusals import refused
from small_models import small_model

import lambdanet
from lambdanet import LambdaLayer, inflate
from lambdanet.backend import compat
from lambdanet.layers.old_arguments import translate
from lambdanet.models import unet
from lambdanet.models.inflate import OverSlices
from lambdanet.models.output_stride import ShiftedCopies

layers = keras.layers
# One network of each family, and what is special in others.
SLOW = "resnet_rs_50", "lambda_resnet26rpt_256", "botnet26t_256", "eca_halonext26ts"
WEEKLY = "lambda_resnet_tiny", "resnet_50", "haloregnetz_b", "efficientnet_b0"
FAMILIES = (
    "halonet_h0",
    "mobilenet_v2",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    *(pytest.param(name, marks=pytest.mark.weekly) for name in WEEKLY),
)
SCOPES = {"lambda_resnet_tiny": 3, "lambda_resnet26rpt_256": 5}


def assert_equal(model, volumes, size=(24, 32), slices=4):
    x = images(2, *size, 3)
    expected = model(x)
    found = volumes(tf.repeat(x[:, tf.newaxis], slices, axis=1))
    for y, z in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
        assert np.std(y) > 0
        if len(y.shape) == 4:
            y = tf.repeat(y[:, tf.newaxis], slices, axis=1)
        assert_near(z, y, 1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_have_equal_outputs_on_equal_slices(name, double_precision):
    """In float32 random normalizations let rounding errors grow beyond 1e-5."""
    model = randomize_normalizations(small_model(name, 32))
    volumes = inflate(model, scope=SCOPES.get(name, 1))
    assert_equal(model, volumes, (32, 32))
    assert volumes.input_shape == (None, None, 32, 32, 3)


def layer_of(**options):
    x = keras.Input([7, 6, 3])
    return keras.Model(x, LambdaLayer(8, num_heads=2, **translate(options))(x))


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"scope": 5, "intra_depth": 2, "position_bias": True}, 3),
        ({"scope": None}, 3),
        ({"scope": (3, None), "multi_head": True}, 1),
        ({"scope": 3, "dilation": 2, "strides": 2, "pool_size": 3}, 3),
        ({"position": None}, 3),
        ({"content": False, "strides": (2, 1)}, 1),
    ],
)
def test_lambda_layers_have_equal_outputs_on_equal_slices(options, scope):
    model = layer_of(**options)
    assert_equal(model, inflate(model, 4, scope), (7, 6))


def test_layers_that_share_positions_share_them_in_volumes():
    model = lambdanet.create_model(
        "lambda_resnet_tiny", num_classes=4, input_size=32, share_positions=True
    )
    volumes = inflate(model, scope=3)
    assert_equal(model, volumes, (32, 32))

    def tables(model):
        return [w for w in model.weights if w.path.endswith("table")]

    assert len(tables(volumes)) == len(tables(model))


def test_what_a_scope_adds_begins_at_zero_and_is_trained():
    x = keras.Input([8, 8, 3])
    y = layers.Conv2D(4, 3, padding="same", name="same")(x)
    y = layers.ZeroPadding2D(1)(y)
    y = layers.Conv2D(4, 3, 2, padding="valid", name="valid")(y)
    y = layers.Conv2D(4, 1, name="point")(y)
    y = LambdaLayer(4, num_heads=2, scope=3, name="lambda")(y)
    model = keras.Model(x, layers.Dense(2)(layers.GlobalMaxPooling2D()(y)))
    volumes = inflate(model, depth=4, scope=3)
    assert_equal(model, volumes, (8, 8))
    weights = {w.path: w for w in volumes.weights}
    added = ("same/kernel", "valid/kernel", "lambda/position/table")
    for name in added:
        assert weights[name].shape[0] == 3
        np.testing.assert_array_equal(np.array(weights[name])[::2], 0)
    assert weights["point/kernel"].shape == (1, 1, 1, 4, 4)
    volumes.compile("sgd", "mse")
    volumes.train_on_batch(images(2, 4, 8, 8, 3), images(2, 2))
    for name in added:
        assert np.abs(np.array(weights[name])[::2]).max() > 0


def test_other_slices_change_the_outputs_and_order_needs_a_scope():
    model = randomize_normalizations(small_model("lambda_resnet_tiny", 16))
    x = images(1, 4, 16, 16, 3)
    volumes = inflate(model)
    y = volumes(x)
    assert np.abs(y - model(x[:, 0])).max() > 1e-3 * np.abs(y).max()
    # With scope 1 the slices of a volume are a set.
    assert_near(volumes(x[:, ::-1]), y, 1e-4)


@pytest.mark.slow
def test_volumes_are_saved_and_folded(tmp_path):
    model = randomize_normalizations(small_model("lambda_resnet_tiny", 16))
    volumes = inflate(model, 4, scope=3)
    x = images(2, 4, 16, 16, 3)
    reloaded(volumes, tmp_path, x)
    assert_near(lambdanet.for_inference(volumes)(x), volumes(x), 1e-4)


def test_features_and_segmentation_keep_the_slices():
    model = small_model("lambda_resnet_tiny", features_only=True)
    assert_equal(randomize_normalizations(model), inflate(model))
    network = unet.UNet((4, 6), ("C", "C"), ("C",))
    model = unet.create_unet(network, 2, 3)
    volumes = inflate(model, scope=3)
    assert_equal(model, volumes, (9, 6))
    assert isinstance(volumes.get_layer("up0_join"), OverSlices)


def test_half_precision_is_kept():
    with compat.dtype_policy("mixed_bfloat16"):
        volumes = inflate(small_model("lambda_resnet_tiny", 16))
    policies = {layer.compute_dtype for layer in volumes.layers if layer.weights}
    assert policies == {"bfloat16", "float32"}
    assert volumes(images(1, 2, 16, 16, 3)).dtype == tf.float32


X = keras.Input([8, 6, 3])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda: layers.Flatten(name="f")(X), "layer 'f' (Flatten) has no form for"),
        (lambda: ShiftedCopies(2)(X), "it is of an output stride"),
        (lambda: layers.GlobalAveragePooling2D()(X) + 1, "it is an operation, no lay"),
        (lambda: LambdaLayer(8, causal="time")(X), "it is causal"),
        (
            lambda: LambdaLayer(8, key_normalization="l2")(X),
            "its content grows with the number of slices",
        ),
        (
            lambda: LambdaLayer(8, position="unstructured")(X),
            "its positions are not relative",
        ),
        (
            lambda: LambdaLayer(8)(X, attention_mask=np.ones([48, 48])),
            "its call has other arguments",
        ),
        (
            lambda: layers.Dense(2)(lambdanet.PooledBatchNormalization()(X)[1]),
            "it reads a number of each slice",
        ),
    ],
)
def test_layers_without_a_form_are_named(output, message):
    with refused(re.escape(message)):
        inflate(keras.Model(X, output()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 2, "scope": 5}, "depth must be at least 3 for scope=5, got 2"),
        ({"scope": 2}, "scope must be odd, got 2"),
        (
            {"model": keras.Sequential([keras.Input([4]), layers.Dense(2)])},
            r"the input of the model must be \[b, h, w, c\], got \(None, 4\)",
        ),
    ],
)
def test_other_arguments_are_refused(arguments, message):
    model = keras.Model(X, layers.ReLU()(X))
    with refused(f"^{message}"):
        inflate(**{"model": model, **arguments})
