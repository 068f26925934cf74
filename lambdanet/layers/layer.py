# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers here."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import invalid, require_tf_keras, require_tf_keras_model


class Layer(keras.layers.Layer):
    """A tf_keras layer that refuses empty maps, and calls from Keras 3.

    Raises:
      InputError: when called with a map that has a side of 0, with a Keras 3 tensor, or by a Keras 3 layer or
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
            raise invalid("each side of a map", "at least 1", tuple(shape))
