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
        if type(self).compute_output_shape is keras.layers.Layer.compute_output_shape:
            return super()._infer_output_signature(*arguments)
        return _declare_outputs(self, *arguments)


def connect(layer: keras.layers.Layer, inputs: Any) -> Any:
    """Calls a layer of Keras in a functional model; its outputs have the shapes that it declares.

    A plain call would trace the layer to find these shapes, which takes half the time of building a model.
    The layers here do not need this function.
    """
    layer.__dict__["_infer_output_signature"] = partial(_declare_outputs, layer)
    try:
        return layer(inputs)
    finally:
        del layer.__dict__["_infer_output_signature"]


def _declare_outputs(layer: keras.layers.Layer, inputs: Any, args: Any, kwargs: Any, masks: Any) -> Any:
    """Builds a layer and returns symbolic outputs of the shapes of `compute_output_shape`."""
    with tf.name_scope(f"{layer.name}/"):  # the slash excludes the names of outer scopes
        layer._maybe_build(inputs)
    layer._set_save_spec(inputs, args, kwargs)
    shapes = layer.compute_output_shape(tf.nest.map_structure(lambda x: x.shape, inputs))
    shapes = shapes if isinstance(shapes, list | dict) else tf.TensorShape(shapes)
    return tf.nest.map_structure(
        lambda shape: keras.__internal__.KerasTensor(tf.TensorSpec(shape, layer.compute_dtype)), shapes
    )


@tf.autograph.experimental.do_not_convert
def _check_call(layer: Layer, arguments: Sequence[Any]) -> None:
    require_tf_keras_model(layer)
    for value in arguments:
        require_tf_keras(value, f"an input of {type(layer).__name__}")
        shape = tf.TensorShape(getattr(value, "shape", None))
        if shape.rank is not None and 0 in shape[1:]:
            raise invalid("each side of a map", "at least 1", tuple(shape))
