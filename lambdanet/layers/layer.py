# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers here."""

import inspect
from collections.abc import Sequence
from functools import partial
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

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, also of base classes, from the attributes of their names."""
        bases = filter(lambda base: issubclass(base, Layer) and "__init__" in vars(base), type(self).__mro__)
        names = [name for base in bases for name in inspect.getfullargspec(vars(base)["__init__"]).args[1:]]
        config = super().get_config() | {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "kernel_regularizer" in config:
            config["kernel_regularizer"] = keras.regularizers.serialize(config["kernel_regularizer"])
        return config

    def _should_use_autograph(self) -> bool:
        return False  # no layer has Python control flow on tensors, and the conversion takes long

    def _infer_output_signature(self, *arguments: Any) -> Any:
        """Declares the outputs in a functional model, where a layer has its own `compute_output_shape`.

        Keras would trace `call` instead, which takes most of the time that building a model takes.
        """
        if type(self).compute_output_shape is keras.layers.Layer.compute_output_shape:
            return super()._infer_output_signature(*arguments)

        def declare(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            shapes = self.compute_output_shape(tf.nest.map_structure(lambda x: x.shape, inputs))
            return tf.nest.map_structure(partial(tf.compat.v1.placeholder, self.compute_dtype), shapes)

        self.__dict__["call"] = declare
        try:
            return super()._infer_output_signature(*arguments)
        finally:
            del self.__dict__["call"]


@tf.autograph.experimental.do_not_convert
def _check_call(layer: Layer, arguments: Sequence[Any]) -> None:
    require_tf_keras_model(layer)
    for value in arguments:
        require_tf_keras(value, f"an input of {type(layer).__name__}")
        shape = tf.TensorShape(getattr(value, "shape", None))
        if shape.rank is not None and 0 in shape[1:]:
            raise invalid("each side of a map", "at least 1", tuple(shape))
