# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers here."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError, require_tf_keras, require_tf_keras_model


class Layer(keras.layers.Layer):
    """A layer of tf_keras that refuses maps without positions, and to take part in a model of Keras 3.

    Raises:
      InputError: when called with a map of which a side is 0, with a Keras 3 tensor, or by a Keras 3 layer or
        model.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _check_call(self, tf.nest.flatten([args, kwargs]))
        return super().__call__(*args, **kwargs)


@tf.autograph.experimental.do_not_convert
def _check_call(layer: Layer, arguments: Sequence[Any]) -> None:
    require_tf_keras_model(layer)
    for value in arguments:
        require_tf_keras(value, f"an input of {type(layer).__name__}")
        shape = tf.TensorShape(getattr(value, "shape", None))
        if shape.rank is not None and 0 in shape[1:]:
            raise InputError(f"each side of a map must be at least 1, got an input of the shape {shape}")
