# SPDX-License-Identifier: Apache-2.0
"""Small networks, with which a run starts quickly: a `create_model` of convolutions, and a row of the zoo."""

import dataclasses

import keras

from lambdanet.layers.batch_norm import BatchNormalization
from lambdanet.models import lambda_resnet

# A convolution with squeeze-and-excitation, and a lambda layer.
TWO_BLOCKS = dataclasses.replace(
    lambda_resnet.MODELS["lambda_resnet_tiny"], stages=("C", "", "", "L")
)
# A lambda layer alone, for runs whose network matters less.
ONE_BLOCK = dataclasses.replace(TWO_BLOCKS, stages=("", "", "", "L"))
# Two blocks with features at every level, for detectors.
FOUR_BLOCKS = dataclasses.replace(TWO_BLOCKS, stages=("C", "C", "C", "L"))


def small_model(
    name, num_classes, input_size, in_channels, kernel_regularizer, batch_norm, **_
):
    x = images = keras.Input([input_size, input_size, in_channels])
    for filters in (16, 32):
        convolution = keras.layers.Conv2D(
            filters,
            3,
            strides=2,
            kernel_regularizer=kernel_regularizer,
            name=f"conv{filters}",
        )
        norm = BatchNormalization(**batch_norm, name=f"norm{filters}")
        x = keras.layers.ReLU()(norm(convolution(x)))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(
        images, keras.layers.Dense(num_classes, name="logits")(x), name="small"
    )


def plain_model(
    name, num_classes, input_size, in_channels, kernel_regularizer, dropout_rate, **_
):
    """A network without batch statistics."""
    x = images = keras.Input([input_size, input_size, in_channels])
    x = keras.layers.Conv2D(
        8, 3, strides=4, kernel_regularizer=kernel_regularizer, name="conv"
    )(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    x = keras.layers.Dropout(dropout_rate)(x)
    return keras.Model(
        images, keras.layers.Dense(num_classes, name="logits")(x), name="plain"
    )
