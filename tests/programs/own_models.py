# SPDX-License-Identifier: Apache-2.0
"""Models of a user, with example batches, for the tests of `tpu-check --model=module:function`."""

import keras
import numpy as np

import lambdanet

WIDTH = 512
INPUTS = 256
BATCH = 128
LAYOUT = {
    ".*up/kernel": (None, "model"),
    ".*up/bias": ("model",),
    ".*down/kernel": ("model", None),
}


def perceptron():
    """Two layers without a layer of lambdanet, in a model within a model; float64 and int64, as NumPy's."""
    inner = keras.Sequential(
        [
            keras.layers.Dense(WIDTH, activation="relu", name="up"),
            keras.layers.Dense(WIDTH, name="down"),
        ],
        name="inner",
    )
    model = keras.Sequential([inner, keras.layers.Dense(10, name="logits")], name="own")
    optimizer = keras.optimizers.Adam(name="adam")  # Keras numbers a second one
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model, (np.zeros([BATCH, INPUTS]), np.zeros([BATCH], "int64"))


def pooled():
    """A lambda layer whose outputs are means over windows."""
    inputs = keras.Input([8, 8, 64])
    x = lambdanet.LambdaLayer(64, scope=7, pool_size=3, strides=2, name="pooled")(
        inputs
    )
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(x), name="own")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, (np.zeros([BATCH, 8, 8, 64]), np.zeros([BATCH], "int64"))


def divided():
    """The same, with axes that several cores divide."""
    return *perceptron(), LAYOUT


def unknown_pattern():
    """A layout with a pattern of no variable."""
    return *perceptron(), {".*upp/kernel": (None, "model")}


def not_compiled():
    """A model without an optimizer."""
    return keras.Sequential([keras.layers.Dense(1)], name="raw"), np.zeros([2, 3])


def no_batch():
    """A model alone."""
    return perceptron()[0]


def fails():
    """A mistake of the user."""
    raise ValueError("no such file: weights.h5")


class TwoLosses(keras.Model):
    """A subclass with a `train_step` of its own, which adds a second loss."""

    def __init__(self):
        super().__init__(name="two_losses")
        self.dense = keras.layers.Dense(8, name="dense")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, state, data):
        import jax

        weights, statistics, optimizer, metrics = state
        inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(data)

        def loss_of(weights):
            outputs, updated = self.stateless_call(weights, statistics, inputs)
            errors = keras.ops.mean(keras.ops.square(outputs - labels))
            return errors + 0.1 * keras.ops.mean(keras.ops.abs(outputs)), updated

        (loss, updated), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        weights, optimizer = self.optimizer.stateless_apply(
            optimizer, gradients, weights
        )
        return {"loss": loss}, (weights, updated, optimizer, metrics)


def custom_step(depth=8):
    """A subclass that is not built before."""
    model = TwoLosses()
    model.compile("adam")
    return model, (np.zeros([16, 128]), np.zeros([16, depth]))


def wrong_shapes():
    """Inputs and labels that do not fit together."""
    return custom_step(7)
