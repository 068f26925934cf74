# SPDX-License-Identifier: Apache-2.0
"""The lambda layer of LambdaUNet equals its equation in float64, and keeps Keras's contract."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_close,
    assert_near,
    images,
    product_error,
    relative_error,
    reloaded,
)
from naive_layers import lambda_by_equations, randomize, weights_by_name
from refusals import refused

import lambdanet
from lambdanet import SliceLambdaLayer
from lambdanet.layers.old_arguments import translate
from lambdanet.layers.position_argument import with_position
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
    options = translate(options)
    layer = SliceLambdaLayer(8, num_heads=2, key_dim=3, **options)
    layer.build((None, *SIZE, 6))
    randomize(layer)
    return layer


def by_equations(layer, x):
    """A lambda layer on each slice, and one with positions alone on the slices at each place."""
    within = [lambda_by_equations(layer, x[:, s]) for s in range(x.shape[1])]
    config = {**layer.get_config(), "content": False}
    position = lambdanet.RelativePositionEmbedding(
        scope=(config.pop("slice_scope"), 1),
        use_bias=layer.slice_position.use_bias,
        name="position",
    )
    config = with_position(config, position)
    across = lambdanet.LambdaLayer.from_config(config)
    across.build([None, SIZE[0], 1, 6])
    weights = weights_by_name(layer)
    for name, weight in weights_by_name(across).items():
        weight.assign(weights[name.replace("position/", "slice_position/")])
    outputs = np.stack(within, axis=1)
    for i, j in np.ndindex(SIZE[1:]):
        stack = x[:, :, i : i + 1, j]
        outputs[:, :, i : i + 1, j] += lambda_by_equations(across, stack)
    return outputs


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_outputs_equal_the_equations(options):
    layer = make(**options)
    x = images(2, *SIZE, 6)
    expected = by_equations(layer, x.numpy())
    assert_near(layer(x), expected, 1e-5)


@pytest.mark.slow
def test_models_are_saved_folded_and_trained(tmp_path):
    layer = SliceLambdaLayer(8, num_heads=2, intra_depth=2, scope=(5, 3))
    inputs = keras.Input([None, None, None, 6])
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    for size in (SIZE, (2, 4, 3)):
        x = images(2, *size, 6)
        assert np.isfinite(model.train_on_batch(x, images(2, *size, 8)))
    loaded = reloaded(model, tmp_path, x)
    xla = tf.function(model, jit_compile=True)
    for same in (xla, lambdanet.for_inference(loaded)):
        assert_close(same(x), model(x), 1e-4)


def test_half_precision_stays_near_float32():
    layer = make(position_bias=True)
    half = SliceLambdaLayer.from_config(
        {**layer.get_config(), "dtype": "mixed_bfloat16"}
    )
    x = images(2, *SIZE, 6)
    half(x)
    half.set_weights(layer.get_weights())
    assert relative_error(half(x), layer(x)) < 20 * product_error("bfloat16")


def test_multiply_adds_count_the_positions_that_are_seen():
    inputs = keras.Input([*SIZE, 6])
    layer = SliceLambdaLayer(8, num_heads=2, key_dim=3, scope=3)
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
        (
            {"implementation": "reference"},
            "implementation of a SliceLambdaLayer must be .*, got 'reference'",
        ),
    ],
)
def test_other_arguments_are_refused(options, message):
    with refused(f"^{message}"):
        SliceLambdaLayer(8, **options)


def test_other_inputs_are_refused():
    layer = SliceLambdaLayer(8, slice_scope=5)
    message = "the number of slices must be at least 3 for slice_scope=5, got 2"
    for _ in range(2):  # the second time it is built
        with refused(f"^{message}$"):
            layer(images(1, 2, 4, 4, 6))
        layer(images(1, 3, 4, 4, 6))
    shape = "must be [b, slices, h, w, c], got (1, 4, 4, 6)"
    with refused(re.escape(shape)):
        layer(images(1, 4, 4, 6))
    with refused("takes no context, mask or state"):
        layer(images(1, 3, 4, 4, 6), attention_mask=np.ones([48, 48]))
