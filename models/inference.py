# SPDX-License-Identifier: Apache-2.0
"""Builds the form of a trained model for inference, with fewer steps and the same outputs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lambdanet import backend as K
from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.errors import InputError, invalid, one_line
from lambdanet.layers.batch_norm_folding import (
    folded_weights,
    is_channel_norm,
    is_linear_projection,
    scale_and_offset,
)
from lambdanet.layers.channel_affine import ChannelAffine
from lambdanet.layers.layer import Layer
from lambdanet.layers.pooled_batch_norm import PooledBatchNormalization
from lambdanet.layers.stochastic_depth import StochasticDepth

# Layers that pass their input on at inference.
TRAINING_ONLY = (
    StochasticDepth,
    keras.layers.ActivityRegularization,
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)


def for_inference(model: keras.Model) -> keras.Model:
    """Returns a model with the same outputs at inference, in fewer steps.

    Batch normalizations are folded into the convolution, the dense layer or the projection of a lambda layer
    before them, and become a scale and an offset (`ChannelAffine`) elsewhere. Position embeddings are
    constants of each traced function, already expanded for its map and device. Dropout and stochastic depth
    are left out. Outputs are equal up to rounding, 1e-5 in float32. `lambdanet export` and `lambdanet
    evaluate` use this form.

    Args:
      model: a functional or Sequential model, of the zoo or any other, with known inputs; it is not changed.
        Layers of other classes within it are copied as they are; models within it get this form too.

    Returns:
      A functional model with weights of its own, which is not trainable: later changes of the weights of
      `model` do not reach it. It can be saved and loaded as any other.

    Raises:
      InputError: the model computes by code of its own instead of a graph of layers, is of another Keras, or
        has a layer that Keras cannot copy.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> fast = lambdanet.for_inference(model)
      >>> fast(tf.zeros([1, 32, 32, 3])).shape
      TensorShape([1, 10])
    """
    which_keras.check_same(model, "the model")
    graph = K.functional(model) if isinstance(model, keras.Model) else None
    if graph is None:
        raise invalid("model", "a functional model, or a Sequential one with an Input", model)
    calls = [_Call(*call) for call in K.calls(graph)]
    norms, copies = _foldable_norms(calls, graph.outputs), _Copies()
    tensors = {
        id(x): keras.Input(x.shape[1:], x.shape[0], dtype=K.dtype_name(x.dtype), name=x.name)
        for x in graph.inputs
    }
    for call in calls:
        args, kwargs = K.map_structure(lambda x: tensors.get(id(x), x), (call.args, call.kwargs))
        outputs = _rewrite(call, args, kwargs, norms, copies)
        tensors.update(zip(map(id, K.flatten(call.outputs)), K.flatten(outputs), strict=True))
    structures = K.map_structure(lambda x: tensors[id(x)], (graph.input, graph.output))
    result = keras.Model(*structures, name=model.name)
    result.trainable = False
    return result


class _Call(NamedTuple):
    """A call of a layer in a functional model."""

    layer: Any
    args: Any
    kwargs: Any
    outputs: Any

    @property
    def input(self) -> Any:
        """The only argument, a tensor; None if there are others, such as a mask or `training=True`."""
        tensors: list[Any] = K.flatten(self.args)
        has_options = any(value is not None and value is not False for value in self.kwargs.values())
        return tensors[0] if len(tensors) == 1 and not has_options else None

    @property
    def output(self) -> Any:
        """The output, or the first of several."""
        return K.flatten(self.outputs)[0]


def _foldable_norms(calls: Sequence[_Call], outputs: Any) -> dict[int, Any]:
    """Returns the normalizations to fold, by the identity of the tensor that they normalize.

    That is the output of a projection with one call, and nothing else reads it.
    """
    num_calls = Counter(id(call.layer) for call in calls)
    reads = Counter(map(id, K.flatten([[call.args, call.kwargs] for call in calls] + [outputs])))
    projected = {
        id(call.output)
        for call in calls
        if call.input is not None and num_calls[id(call.layer)] == 1 and is_linear_projection(call.layer)
    }
    return {
        id(call.input): call.layer
        for call in calls
        if id(call.input) in projected and reads[id(call.input)] == 1 and _is_channel_norm(call)
    }


def _is_channel_norm(call: _Call) -> bool:
    """Whether a call normalizes channels, by the moving statistics, in the precision of its input."""
    x = call.input
    return x is not None and x.dtype == call.output.dtype and is_channel_norm(call.layer, len(x.shape))


def _rewrite(call: _Call, args: Any, kwargs: Any, norms: Mapping[int, Any], copies: "_Copies") -> Any:
    """Calls what replaces a layer with arguments of the new model, and returns the outputs."""
    layer, x, inputs = call.layer, call.input, next(iter(K.flatten(args)), None)
    if type(layer) in TRAINING_ONLY and x is not None and x.dtype == call.output.dtype:
        return inputs
    if id(call.output) in norms:
        return _project(layer, norms[id(call.output)], inputs)
    if id(x) in norms:
        return _with_means(layer, inputs)
    if _is_channel_norm(call):
        return _with_means(layer, copies.call(_as_affine, layer, inputs))
    return copies.call(_copied, layer, *args, **kwargs)


def _project(projection: keras.layers.Layer, norm: keras.layers.Layer, inputs: Any) -> Any:
    """Calls a projection that includes the normalization after it."""
    copy = type(projection).from_config({**projection.get_config(), "use_bias": True})
    outputs = K.connect(copy, inputs)
    copy.set_weights(folded_weights(projection, norm))
    return outputs


def _with_means(norm: keras.layers.Layer, normalized: Any) -> Any:
    """Returns all outputs of a normalization: the normalized map, and of some its means."""
    if type(norm) is not PooledBatchNormalization:
        return normalized
    means = keras.layers.GlobalAveragePooling2D(name=f"{norm.name}_means", dtype=norm.dtype_policy)
    return [normalized, means(normalized)]


class _Copies:
    """Layers in place of those of the model, one for all calls of a layer."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}

    def call(self, make: Callable[[Any], tuple[Any, Any]], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls what `make(layer)` returned at the first call, with weights to set, or None."""
        if id(layer) in self._copies:
            return self._copies[id(layer)](*args, **kwargs)
        try:
            copy, weights = make(layer)
            outputs = copy(*args, **kwargs)
            if weights is not None:
                _set_weights(copy, weights)
        except (NotImplementedError, TypeError, ValueError) as error:
            reason = f"layer {layer.name!r} cannot be copied ({one_line(error)})"
            raise InputError(f"the model has no form for inference: {reason}") from error
        self._copies[id(layer)] = copy
        return outputs


def _set_weights(layer: keras.layers.Layer, weights: Sequence[np.ndarray]) -> None:
    layer.set_weights(weights)
    for part in (layer, *K.sublayers(layer)):
        if isinstance(part, keras.layers.Normalization):
            part.finalize_state()  # in Keras 3 it computes with copies of its weights


def _as_affine(norm: keras.layers.Layer) -> tuple[Any, Any]:
    """Returns the scale and offset that a normalization is."""
    return ChannelAffine(name=norm.name, dtype=norm.dtype_policy), scale_and_offset(norm)


def _copied(layer: Any) -> tuple[Any, Any]:
    """Returns the form for inference of a layer, or of a model within the model."""
    if K.functional(layer) is not None:
        return for_inference(layer), None
    if isinstance(layer, Layer):
        return layer.for_inference(), None
    if isinstance(layer, keras.layers.Layer):
        return type(layer).from_config(layer.get_config()), layer.get_weights()
    return layer, None  # an operation of Keras 3, such as an addition
