# SPDX-License-Identifier: Apache-2.0
"""Adapts tf_keras; `keras_3_compat` has the same names."""

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine.base_layer_utils import call_context

Add = keras.layers.Add
AveragePooling2D = keras.layers.AveragePooling2D
Dense = keras.layers.Dense
RandomNormal = keras.initializers.RandomNormal
VarianceScaling = keras.initializers.VarianceScaling
Shape = tf.TensorShape


class BaseLayer(keras.layers.Layer):
    """A layer that declares its outputs instead of being traced for them, and is excluded from AutoGraph."""

    def _should_use_autograph(self) -> bool:
        return False  # no layer has Python control flow on tensors, and the conversion takes long

    def _infer_output_signature(self, *arguments: Any) -> Any:
        if type(self).compute_output_shape is keras.layers.Layer.compute_output_shape:
            return super()._infer_output_signature(*arguments)
        return _declare_outputs(self, *arguments)


_trace_outputs = keras.layers.Layer._infer_output_signature
_declares = contextvars.ContextVar("declares", default=False)
_scopes, _lock = [0], threading.Lock()


@contextlib.contextmanager
def declared_shapes() -> Iterator[None]:
    """Gives the outputs of layers that are called inside, in this thread, the shapes that the layers declare.

    A plain call would trace a layer of Keras to find these shapes, which takes half the time of building a
    model. The layers of lambdanet do so anyway.
    """
    with _lock:
        _scopes[0] += 1
        keras.layers.Layer._infer_output_signature = _infer_outputs
    token = _declares.set(True)
    try:
        yield
    finally:
        _declares.reset(token)
        with _lock:
            _scopes[0] -= 1
            if not _scopes[0]:
                keras.layers.Layer._infer_output_signature = _trace_outputs


def _infer_outputs(layer: keras.layers.Layer, *arguments: Any) -> Any:
    is_declared = type(layer).compute_output_shape is not keras.layers.Layer.compute_output_shape
    return (_declare_outputs if is_declared and _declares.get() else _trace_outputs)(layer, *arguments)


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


def plain_python(function: Any) -> Any:
    """Excludes a function from AutoGraph."""
    return tf.autograph.experimental.do_not_convert(function)


def variable_scope(layer: keras.layers.Layer) -> AbstractContextManager[Any]:
    """Returns a scope for the names of variables that a layer gets outside of its own call."""
    return tf.name_scope(layer.name)


def variable_name(variable: tf.Variable) -> str:
    """Returns the name of a variable as files have it, without TensorFlow's ":0"."""
    return variable.name.removesuffix(":0")


def own_variables(layer: keras.layers.Layer) -> list[Any]:
    """Returns the variables of a layer itself, not of its sublayers, in the order of files."""
    return layer._trainable_weights + layer._non_trainable_weights


def sublayers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model and the layers within them."""
    return (module for module in model.submodules if isinstance(module, keras.layers.Layer))


def is_within_call() -> bool:
    """Returns whether a layer is being called."""
    return call_context().in_call


def functional_graph(model: Any) -> Any:
    """Returns the graph of layers of a functional or Sequential model; None for one that computes by code."""
    is_graph = getattr(model, "_is_graph_network", False)
    return model if is_graph and type(model).call.__module__.startswith("tf_keras.") else None


def layer_calls(model: keras.Model) -> Iterator[tuple[keras.layers.Layer, Any, Any, Any]]:
    """Yields layer, arguments, keyword arguments and outputs of each call in a functional model, in order."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if not node.is_input:
                yield node.layer, node.call_args, node.call_kwargs, node.outputs


def without_values() -> AbstractContextManager[None]:
    """Returns a context in which layers get variables of undefined values, which takes half the time."""
    return tf.variable_creator_scope(_create_empty)


def _create_empty(create: Any, **arguments: Any) -> tf.Variable:
    shape, dtype = arguments["shape"], arguments["dtype"]
    if shape is not None:  # of a layer's weight; Keras's own counters have values
        arguments["initial_value"] = lambda: tf.raw_ops.Empty(shape=tf.TensorShape(shape), dtype=dtype)
    return create(**arguments)


# In the order in which `deserialize` finds shared objects: for .keras files, and for other formats.
DESERIALIZERS = (keras.saving.deserialize_keras_object, keras.utils.legacy.deserialize_keras_object)


def averaged_variance(variance: tf.Tensor, count: Any) -> tf.Tensor:
    """Returns what a batch normalization averages: the unbiased variance, as the fused kernels do."""
    count = tf.cast(count, variance.dtype)
    return variance * (count / tf.maximum(count - 1, 1))
