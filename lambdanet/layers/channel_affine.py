# SPDX-License-Identifier: Apache-2.0
"""A scale and an offset per channel."""

from lambdanet.backend import compat, keras
from lambdanet.errors import invalid
from lambdanet.layers.layer import Layer


@keras.saving.register_keras_serializable(package="lambdanet")
class ChannelAffine(Layer):
    """Scales and shifts every channel, scale * x + offset: what a batch normalization computes at inference.

    Input and output: [..., c].

    Args:
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Raises:
      InputError: for an input with an unknown number of channels.

    Example:
      >>> ChannelAffine()(tf.zeros([2, 14, 14, 64])).shape
      TensorShape([2, 14, 14, 64])
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        channels = compat.Shape(input_shape)[-1]
        if channels is None:
            raise invalid("the number of channels", "known", tuple(input_shape))
        self.scale = self.add_weight(name="scale", shape=[channels], initializer="ones")
        self.offset = self.add_weight(name="offset", shape=[channels], initializer="zeros")
        super().build(input_shape)

    def call(self, inputs):
        return inputs * self.scale + self.offset

    def compute_output_shape(self, input_shape):
        return compat.Shape(input_shape)
