# SPDX-License-Identifier: Apache-2.0
"""Layers beside, and inside, models of Keras 3: these would neither train nor save a layer of tf_keras."""

import keras as keras_3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import lambdanet
from lambdanet.errors import InputError

LAYERS = {
    "CenteredMaxPooling2D": lambda: lambdanet.CenteredMaxPooling2D(),
    "EfficientChannelAttention": lambda: lambdanet.EfficientChannelAttention(),
    "HaloAttention": lambda: lambdanet.HaloAttention(8, 2, 4),
    "LambdaLayer": lambda: lambdanet.LambdaLayer(8, scope=3),
    "PooledBatchNormalization": lambda: lambdanet.PooledBatchNormalization(),
    "SqueezeExcite": lambda: lambdanet.SqueezeExcite(),
    "StochasticDepth": lambda: lambdanet.StochasticDepth(0.5),
    "lambda_resnet_tiny": lambda: lambdanet.create_model("lambda_resnet_tiny", in_channels=8, num_classes=8),
}
IMAGES = np.random.default_rng(0).normal(size=[4, 32, 32, 8]).astype(np.float32)


class Model(keras_3.Model):
    """A model of Keras 3 with a layer of tf_keras in it, which it cannot see."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = keras_3.layers.Dense(2)

    def call(self, images):
        outputs = tf.nest.flatten(self.layer(images))[0]
        return self.head(keras_3.ops.reshape(outputs, [-1, outputs.shape[-1]]))


class Layer(keras_3.layers.Layer):
    """The same as a layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, images):
        return self.layer(images)


def functional():
    images = keras_3.Input([32, 32, 8])
    return keras_3.Model(images, Layer(lambdanet.SqueezeExcite())(images))


def trained():
    model = Model(lambdanet.SqueezeExcite())
    model.compile("sgd", "mse")
    model.fit(IMAGES, np.zeros([4, 2]), verbose=0)


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_in_a_model_of_keras_3_is_rejected(name):
    layer = LAYERS[name]()
    with pytest.raises(
        InputError, match="called by a Keras 3 model or layer, Model, .*import tf_keras as keras"
    ):
        Model(layer)(IMAGES)
    assert layer(IMAGES) is not None  # as before, outside it


@pytest.mark.parametrize("use", [functional, trained, lambda: Layer(lambdanet.SqueezeExcite())(IMAGES)])
def test_each_use_in_keras_3_is_rejected(use):
    with pytest.raises(InputError, match="'squeeze_excite.*' is called by a Keras 3 model or layer"):
        use()


def test_models_of_both_in_one_process():
    """A model of Keras 3 learns from one of tf_keras, which is called between its own calls."""
    teacher = keras.Sequential([keras.Input([32, 32, 8]), lambdanet.SqueezeExcite()])

    class Student(keras_3.Sequential):
        def train_step(self, data):
            return super().train_step((data[0], teacher(data[0])))

    student = Student([keras_3.Input([32, 32, 8]), keras_3.layers.Dense(8)])
    student.compile("sgd", "mse")
    before = student.get_weights()[0]
    student.fit(IMAGES, IMAGES, verbose=0)
    assert np.abs(student.get_weights()[0] - before).max() > 0
    with pytest.raises(ValueError, match="a reason of its own"):
        Layer(fails)(IMAGES)
    teacher.compile("sgd", "mse")
    assert np.isfinite(teacher.fit(IMAGES, student(IMAGES), verbose=0).history["loss"]).all()


def fails(images):
    raise ValueError("a reason of its own")
