# SPDX-License-Identifier: Apache-2.0
"""Channel attention by one small convolution over the channels (Wang et al. 2020)."""

import math
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.errors import check_scope
from lambdanet.layers.layer import Layer


@keras.saving.register_keras_serializable(package="lambdanet")
class EfficientChannelAttention(Layer):
    """Scales every channel by a gate in (0, 1) computed from the means of the channels next to it.

    gate = sigmoid(w * mean(x)), where * is a convolution over the channels, zero beyond both ends, with a
    kernel of k weights and no bias.

    Input and output: [b, h, w, c].

    Args:
      kernel_size: k, odd. Default: (log2(c) + 1) / 2 rounded to an odd number, at least 3 (equation 12 of the
        paper): 3 for 64 channels, 5 for 128 to 512.
      kernel_regularizer: regularizer of the kernel.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Raises:
      InputError: for a kernel size that is not a positive odd integer.

    Example:
      >>> EfficientChannelAttention()(tf.zeros([2, 14, 14, 128])).shape
      TensorShape([2, 14, 14, 128])
    """

    def __init__(self, kernel_size: int | None = None, kernel_regularizer: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.kernel_size = None if kernel_size is None else check_scope(kernel_size, "kernel_size")
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape):
        size = self.kernel_size or _size_for(input_shape[-1])
        self.kernel = self.add_weight(
            name="kernel", shape=[size, 1, 1], initializer="he_normal", regularizer=self.kernel_regularizer
        )
        super().build(input_shape)

    def call(self, inputs):
        means = K.mean(inputs, axis=[1, 2])[..., K.newaxis]  # [b, c, 1]
        gate = K.sigmoid(K.conv(means, K.cast(self.kernel, means.dtype), 1, "SAME"))
        return inputs * K.transpose(gate, [0, 2, 1])[:, K.newaxis]

    def compute_output_shape(self, input_shape):
        return compat.Shape(input_shape)


def _size_for(channels: int) -> int:
    size = int((math.log2(channels) + 1) / 2)
    return max(size | 1, 3)
