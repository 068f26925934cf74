# SPDX-License-Identifier: Apache-2.0
"""Layers beside, and inside, models of tf_keras, which would neither train nor save them."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as other
from layer_table import LAYERS as SMALL

import lambdanet
from lambdanet.backend import keras
from lambdanet.core.errors import InputError

CALLED = "is called by a tf_keras model or layer"
LAYERS = {
    **{name: make for name, make in SMALL.items() if "_" not in name},
    "PooledBatchNormalization": lambdanet.PooledBatchNormalization,
    "lambda_resnet_tiny": lambda: lambdanet.create_model(
        "lambda_resnet_tiny", in_channels=8, num_classes=8
    ),
}
IMAGES = np.random.default_rng(0).normal(size=[4, 9, 9, 8]).astype(np.float32)


class Model(other.Model):
    """A model of tf_keras with a layer in it, which it cannot see."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = other.layers.Dense(2)

    def call(self, images):
        outputs = tf.nest.flatten(self.layer(images))[0]
        return self.head(tf.reshape(outputs, [-1, outputs.shape[-1]]))


class Layer(other.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, images):
        return self.layer(images)


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_in_a_model_is_rejected(name):
    layer = LAYERS[name]()
    with pytest.raises(
        InputError, match=f"{CALLED}, Model, .*`import keras`.*`lambdanet.as_tf_keras`"
    ):
        Model(layer)(IMAGES)
    assert layer(IMAGES) is not None  # as before, outside it


def test_each_use_is_rejected():
    model, layer = Model(lambdanet.SqueezeExcite()), Layer(lambdanet.SqueezeExcite())
    model.compile("sgd", "mse")
    labels = np.zeros([4, 2])
    uses = (
        lambda: layer(other.Input([9, 9, 8])),
        lambda: layer(IMAGES),
        lambda: model.fit(IMAGES, labels),
    )
    for use in uses:
        # AutoGraph wraps it
        with pytest.raises(Exception, match=f"'squeeze_excite.*' {CALLED}"):
            use()


def test_models_of_both_in_one_process():
    teacher = keras.Sequential([keras.Input([9, 9, 8]), lambdanet.SqueezeExcite()])

    class Student(other.Sequential):
        def train_step(self, data):
            return super().train_step((data[0], teacher(data[0])))

    student = Student([other.Input([9, 9, 8]), other.layers.Dense(8)])
    student.compile("sgd", "mse")
    before = student.get_weights()[0]
    student.fit(IMAGES, IMAGES, verbose=0)
    assert np.abs(student.get_weights()[0] - before).max() > 0
    with pytest.raises(ValueError, match="a reason of its own"):
        Layer(fails)(IMAGES)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: lambdanet.GlobalAttention(8)(other.Input([4, 4, 8])),
            "an input of GlobalAttention is a tf_keras",
        ),
        (
            lambda: lambdanet.LambdaLayer(
                embeddings_initializer=other.initializers.Zeros()
            ),
            "embeddings_initializer is a tf_keras Z",
        ),
        (
            lambda: lambdanet.create_model(
                "lambda_resnet_tiny", kernel_regularizer=other.regularizers.L2()
            ),
            "kernel_regularizer is a tf_keras L2",
        ),
    ],
)
def test_arguments_of_tf_keras_are_rejected(use, message):
    with pytest.raises(InputError, match=message):
        use()


def fails(images):
    raise ValueError("a reason of its own")
