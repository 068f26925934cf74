# SPDX-License-Identifier: Apache-2.0
"""Max-pooling in windows that are centred on the positions that they keep."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import check_count, check_scope
from lambdanet.layers.layer import Layer


@keras.saving.register_keras_serializable(package="lambdanet")
class CentredMaxPooling2D(Layer):
    """The maximum of the window around every position that the strides keep, as PyTorch pads it.

    Output (i, j) is the maximum over the window centred on (strides * i, strides * j), of what lies on the
    map. TensorFlow's padding "same" begins its first window at the edge where the map's side is even.

    Input: [b, h, w, c]. Output: [b, h / strides, w / strides, c], rounded up.

    Args:
      pool_size: the side of the window, odd.
      strides: the distance of two windows.
      **kwargs: `name`, `dtype` and what else a Keras layer takes.

    Raises:
      InputError: for an even window, or strides that are not a positive integer.

    Example:
      >>> CentredMaxPooling2D(3, 2)(tf.zeros([2, 8, 7, 16])).shape
      TensorShape([2, 4, 4, 16])
    """

    def __init__(self, pool_size: int = 3, strides: int = 2, **kwargs: Any):
        super().__init__(**kwargs)
        self.pool_size = check_scope(pool_size, "pool_size")
        self.strides = check_count("strides", strides)

    def call(self, inputs):
        reach = self.pool_size // 2
        paddings = [[0, 0], [reach, reach], [reach, reach], [0, 0]]
        surrounded = tf.pad(inputs, paddings, constant_values=inputs.dtype.min)
        return tf.nn.max_pool2d(surrounded, self.pool_size, self.strides, "VALID")

    def compute_output_shape(self, input_shape):
        b, *spatial, channels = tf.TensorShape(input_shape)
        spatial = [None if n is None else -(-n // self.strides) for n in spatial]
        return tf.TensorShape([b, *spatial, channels])

    def get_config(self):
        return {**super().get_config(), "pool_size": self.pool_size, "strides": self.strides}
