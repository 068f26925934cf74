# SPDX-License-Identifier: Apache-2.0
"""Batch normalization by the fused kernel, and with the means of its output in one pass, against Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, assert_equal_with_gradients, images, reloaded
from keras import layers
from numpy.testing import assert_allclose

import lambdanet
from lambdanet.backend import compat, device
from lambdanet.layers.batch_norm import BatchNormalization
from lambdanet.ops.tpu.one_pass import normalize


def test_one_pass_equals_the_definition_with_gradients():
    def by_definition(x, gamma, beta):
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        outputs = (x - mean) / tf.sqrt(variance + 1e-3) * gamma + beta
        return outputs, tf.reduce_mean(outputs, [1, 2])

    arrays = 2 + images(3, 4, 5, 6), images(6), images(6)
    inputs = [tf.cast(x, tf.float64) for x in arrays]
    assert_equal_with_gradients(
        lambda *x: normalize(*x, 1e-3)[:2], by_definition, inputs, 1e-9
    )


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("training", [True, False])
def test_training_step_on_a_tpu_equals_keras(dtype, training):
    x = 1 + images(8, 6, 5, 4)
    arguments = {"momentum": 0.8, "epsilon": 1e-5, "dtype": dtype}
    ours = lambdanet.PooledBatchNormalization(**arguments)
    theirs = layers.BatchNormalization(**arguments)
    with device.assume("TPU"):
        outputs, means = ours(x, training=training)
    expected = theirs(x, training=training)
    tolerance = 2e-2 if "16" in dtype else 2e-6
    assert outputs.dtype == expected.dtype == means.dtype
    outputs, means, expected = (
        tf.cast(y, "float32") for y in (outputs, means, expected)
    )
    assert_allclose(outputs, expected, atol=tolerance)
    assert_allclose(means, tf.reduce_mean(expected, [1, 2]), atol=tolerance)
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        assert a.name.split("/")[-1] == b.name.split("/")[-1]
        assert_allclose(a, b, rtol=2e-3 if "16" in dtype else 2e-6)


def test_each_normalization_of_a_model_trains_by_the_fused_kernel():
    model = lambdanet.create_model("lambda_resnet_tiny", input_size=32)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(model(x, training=True)))
        return tape.gradient(loss, model.trainable_weights)

    graph = step.get_concrete_function(tf.zeros([2, 32, 32, 3])).graph
    used = [op.type for op in graph.get_operations()]
    counts = {used.count(f"FusedBatchNorm{kind}V3") for kind in ("", "Grad")}
    assert counts == {len(norms_of(model))} and max(counts) > 20


def test_layers_without_one_pass_equal_keras():
    x = 1 + images(4, 3, 3, 2)
    frozen = lambdanet.PooledBatchNormalization()
    frozen.trainable = False
    with device.assume("TPU"):
        assert_close(frozen(x, training=True)[0], x / np.sqrt(1.001), 1e-5)
        for options in ({"synchronized": True}, {"dtype": "float64"}, {"scale": False}):
            layer = lambdanet.PooledBatchNormalization(**options)
            outputs, means = layer(x, training=True)
            assert_close(np.mean(outputs, axis=(0, 1, 2)), 0, 1e-5)
            assert_close(means, np.mean(outputs, axis=(1, 2)), 1e-5)


def test_squeeze_and_excitation_uses_given_means():
    x = images(2, 5, 3, 8)
    layer = lambdanet.SqueezeExcite(0.5)
    expected = layer(x)
    assert_close(layer([x, tf.reduce_mean(x, [1, 2])]), expected, 1e-6)
    assert np.abs(layer([x, tf.zeros([2, 8])]) - expected).max() > 1e-3
    with device.assume("TPU"):
        assert_close(layer(x), expected, 1e-6)


def norms_of(model):
    return [
        layer
        for layer in compat.sublayers(model)
        if isinstance(layer, layers.BatchNormalization)
    ]


def test_synchronized_statistics_stay_in_a_loaded_model(tmp_path):
    options = {"num_classes": 4, "batch_norm": {"synchronized": True}}
    model = lambdanet.create_model("lambda_resnet_tiny", **options)
    loaded = reloaded(model, tmp_path, images(2, 32, 32, 3))
    for copy in (model, loaded, keras.models.clone_model(model)):
        norms = norms_of(copy)
        assert len(norms) > 20 and all(norm.synchronized for norm in norms)
    assert not norms_of(lambdanet.for_inference(model))


def test_sequences_on_a_tpu_equal_keras():
    x = 1 + images(8, 6, 4)
    with device.assume("TPU"):
        outputs = BatchNormalization(epsilon=1e-5)(x, training=True)
    expected = layers.BatchNormalization(epsilon=1e-5)(x, training=True)
    assert_close(outputs, expected, 2e-6)
