# SPDX-License-Identifier: Apache-2.0
"""MobileNetV2 equals that of tf_keras.applications, and its lambda blocks are placed as in the paper."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from helpers import images

import lambdanet


def test_mobilenet_v2_is_that_of_keras_applications():
    """With the same weights, in the same order, the outputs are the same."""
    theirs = keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classifier_activation=None)
    rng = np.random.default_rng(1)
    theirs.set_weights([w + rng.uniform(0, 0.1, w.shape) for w in theirs.get_weights()])
    ours = lambdanet.create_model("mobilenet_v2", input_size=96, batch_norm={"epsilon": 1e-3})
    ours.set_weights(theirs.get_weights())
    x = images(2, 96, 96, 3)
    expected = theirs(x).numpy()
    np.testing.assert_allclose(ours(x), expected, atol=1e-4 * np.abs(expected).max())


def test_lambda_blocks_are_the_tenth_and_the_sixteenth():
    model = lambdanet.create_model("mobilenet_v2_lambda", features_only=True)
    layers = [layer for layer in model.layers if isinstance(layer, lambdanet.LambdaLayer)]
    assert [layer.name for layer in layers] == ["block10_lambda", "block16_lambda"]
    assert [layer.filters for layer in layers] == [64, 160]
    assert all((layer.key_dim, layer.num_heads, layer.position.scope) == (8, 4, 5) for layer in layers)
    depthwise = [layer for layer in model.layers if isinstance(layer, keras.layers.DepthwiseConv2D)]
    assert len(depthwise) == 15
    shapes = {level: tuple(x.shape) for level, x in model(images(1, 64, 96, 3)).items()}
    assert shapes == {
        "2": (1, 16, 24, 24),
        "3": (1, 8, 12, 32),
        "4": (1, 4, 6, 96),
        "5": (1, 2, 3, 320),
    }


def test_parameters_of_a_lambda_block_by_hand():
    """Against the inverted bottleneck that it replaces, also at the query depth that the text states."""
    plain, *ours = (
        lambdanet.model_info(name, **options).params
        for name, options in (
            ("mobilenet_v2", {}),
            ("mobilenet_v2_lambda", {}),
            ("mobilenet_v2_lambda", {"key_dim": 32}),
        )
    )

    def difference(d, k, h=4):
        inverted = d * 6 * d + 9 * 6 * d + 6 * d * d + 2 * (6 * d + 6 * d + d)
        v = d // h
        projections = d * (h * k + k + v) + 2 * (h * k + v)
        return inverted - (2 * (d * d + 2 * d) + projections + 5 * 5 * k)

    for k, count in zip((8, 32), ours, strict=True):
        assert plain - count == difference(64, k) + difference(160, k)
    assert ours == [
        3_207_912,
        3_236_376,
    ]  # the second is the 3.24 M of 32 for each head, which the paper has not


def test_gradients_reach_every_weight():
    model = lambdanet.create_model("mobilenet_v2_lambda", num_classes=3, stochastic_depth_rate=0.01)
    with tf.GradientTape() as tape:
        logits = model(images(4, 64, 64, 3), training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2, 0], logits))
    # The last norm of a residual block does not start at zero here, as in the paper's code.
    gradients = tape.gradient(loss, model.trainable_weights)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)
    rates = {layer.name: layer.rate for layer in model.layers if isinstance(layer, lambdanet.StochasticDepth)}
    assert rates["block16_drop"] == pytest.approx(0.01 * 16 / 17)


def test_no_options_without_lambda_layers():
    with pytest.raises(lambdanet.errors.InputError, match="its options: none"):
        lambdanet.create_model("mobilenet_v2", key_dim=8)
