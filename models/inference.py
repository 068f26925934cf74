# SPDX-License-Identifier: Apache-2.0
"""Builds the form of a trained model for inference, with fewer steps and the same outputs."""

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.layers.batch_norm import (
    ChannelAffine,
    PooledBatchNormalization,
    folded_weights,
    is_channel_norm,
    is_linear_projection,
    scale_and_offset,
)
from lambdanet.layers.layer import Layer, copied_config
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


@keras.saving.register_keras_serializable("lambdanet")
class InferenceModel(keras.Model):
    """The result of `for_inference`: it cannot train, and within other models computes as at inference."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("training", *args[1:2]) and not compat.is_within_call():
            self.fit()
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Computes as at inference also within a model that trains."""
        training = False if training is False else None
        return super().call(inputs, training=training, mask=mask)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Raises `InputError`."""
        raise invalid(
            "training",
            "False for a model of for_inference",
            True,
            "its normalizations are folded; train the model that it was made of",
        )

    train_on_batch = fit


# HDF5 files leave the package out
keras.saving.get_custom_objects()["InferenceModel"] = InferenceModel


def for_inference(model: keras.Model) -> keras.Model:
    """Returns a model with the same outputs at inference, in fewer steps.

    Batch normalizations are folded into the convolution, the dense layer or the projection of a lambda layer
    before them, and become a scale and an offset (`ChannelAffine`) elsewhere. Position embeddings are
    constants of each traced function, already expanded for its map and device; where they get other weights
    later, the function expands these at each call. Dropout and stochastic depth
    are left out. Outputs are equal up to rounding, 1e-5 in float32. `lambdanet export` and `lambdanet
    evaluate` use this form.

    Args:
      model: a functional or Sequential model, of the zoo or any other, with known inputs; it is not changed.
        Layers of other classes within it are copied unchanged, and so are layers that it calls with
        `training=True`; models within it get this form too. Augmentations of Keras, which are called with
        `training=True` by default, do nothing.

    Returns:
      A functional model with a copy of the weights: later changes of the weights of `model` do not reach it.
      It raises `InputError` when it is called with `training=True`, as by `fit`.
      Its outputs have the names that they have in `model`.
      Its layers are not trainable, except those copied unchanged for `training=True` or because they contain
      layers. It can be saved and loaded as any other.

    Raises:
      InputError: the model is a subclassed model instead of a graph of layers, is of another Keras, or
        has a layer that Keras cannot copy.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> fast = lambdanet.for_inference(model)
      >>> tuple(fast(keras.ops.zeros([1, 32, 32, 3])).shape)
      (1, 10)
    """
    which_keras.check_keras_3(model, "the model")
    graph = compat.graph_of(model)
    calls = [_inference_call(call) for call in compat.layer_calls(graph)]
    form = _InferenceForm(calls, graph.outputs)
    tensors = {id(x): _copied_input(x) for x in graph.inputs}
    compat.rebuild(calls, tensors, form.add)
    _keep_names(graph.outputs, tensors)
    structures = K.map_structure(lambda x: tensors[id(x)], (graph.input, graph.output))
    result = InferenceModel(*structures, name=model.name)
    # A normalization inside of a layer may also be for training.
    for layer in result.layers:
        if layer.name not in form.as_is and (
            isinstance(layer, Layer) or not any(compat.sublayers(layer))
        ):
            layer.trainable = False
    return result


def _copied_input(x: Any) -> Any:
    """Returns an input like a model's."""
    layer = x._keras_history[0]
    return type(layer).from_config(layer.get_config()).output


def _keep_names(outputs: Sequence[Any], tensors: dict[int, Any]) -> None:
    """Passes outputs whose layer is left out or folded through a layer that keeps its name."""
    names = {x._keras_history[0].name for x in tensors.values()}
    layers: dict[str, Any] = {}
    renamed = set()
    for x in outputs:
        name = x._keras_history[0].name
        if name in names or id(x) in renamed:
            continue
        renamed.add(id(x))
        dtype = K.dtype_name(tensors[id(x)].dtype)
        identity = layers.setdefault(
            name, keras.layers.Activation("linear", name=name, dtype=dtype)
        )
        tensors[id(x)] = identity(tensors[id(x)])


def _inference_call(call: compat.Call) -> compat.Call:
    """Returns a call without `training=True` where that is the default, as of Keras's augmentations."""
    layer = call.layer
    signature = inspect.signature(layer.call) if hasattr(layer, "call") else None
    training = signature and signature.parameters.get("training")
    if not training or training.default is not True:
        return call
    kwargs = {name: x for name, x in call.kwargs.items() if name != "training"}
    return call._replace(kwargs=kwargs)


def _is_training(call: compat.Call) -> bool:
    """Whether a layer is called with `training=True`, also by position."""
    options = [
        call.kwargs.get("training"),
        *(x for x in K.flatten(call.args) if isinstance(x, bool)),
    ]
    return any(map(_is_set, options)) and isinstance(call.layer, keras.layers.Layer)


def _is_set(option: Any) -> bool:
    return option is not None and option is not False


def _output(call: compat.Call) -> Any:
    """Returns the output of a call, or the first of several."""
    return K.flatten(call.results)[0]


class _InferenceForm:
    """A model while its form for inference is built.

    Attributes:
      as_is: the names of the layers that are copied unchanged, for all their calls.
    """

    def __init__(self, calls: Sequence[compat.Call], outputs: Any):
        self.as_is = {call.layer.name for call in calls if _is_training(call)}
        self._norms = self._foldable_norms(calls, outputs)
        self._copies: dict[Any, Any] = {}  # one for all calls of a layer

    def _foldable_norms(
        self, calls: Sequence[compat.Call], outputs: Any
    ) -> dict[int, Any]:
        """Returns the normalizations to fold, by the identity of the tensor that they normalize.

        That is the output of a projection with one call, and nothing else reads it.
        """
        num_calls = Counter(id(call.layer) for call in calls)
        reads = Counter(
            map(id, K.flatten([[call.args, call.kwargs] for call in calls] + [outputs]))
        )
        projected = {
            id(_output(call))
            for call in calls
            if self._input(call) is not None
            and num_calls[id(call.layer)] == 1
            and is_linear_projection(call.layer)
        }
        norms = {}
        for call in calls:
            x = id(self._input(call))
            if x in projected and reads[x] == 1 and self._is_channel_norm(call):
                norms[x] = call.layer
        return norms

    def _input(self, call: compat.Call) -> Any:
        """The only argument, a tensor; None if there are others, such as a mask, or the layer is kept."""
        tensors: list[Any] = K.flatten(call.args)
        has_options = any(map(_is_set, call.kwargs.values()))
        is_free = call.layer.name not in self.as_is
        return tensors[0] if len(tensors) == 1 and not has_options and is_free else None

    def _is_channel_norm(self, call: compat.Call) -> bool:
        """Whether a call normalizes channels, by the moving statistics, in the precision of its input."""
        x = self._input(call)
        return (
            x is not None
            and x.dtype == _output(call).dtype
            and is_channel_norm(call.layer, len(x.shape))
        )

    def add(self, call: compat.Call, args: Any, kwargs: Any) -> Any:
        """Calls what replaces a layer with arguments of the new model, and returns the outputs."""
        layer = call.layer
        x = self._input(call)
        y = _output(call)
        inputs = next(iter(K.flatten(args)), None)
        if type(layer) in TRAINING_ONLY and x is not None and x.dtype == y.dtype:
            return inputs
        if id(y) in self._norms:
            return _project(layer, self._norms[id(y)], inputs)
        if id(x) in self._norms:
            return self._with_means(layer, inputs)
        if self._is_channel_norm(call):
            return self._with_means(layer, self._call(_as_affine, layer, inputs))
        is_open = kwargs.get("training") is None and bool not in map(type, args)
        has_training = getattr(layer, "_call_has_training_arg", False)
        if is_open and has_training and compat.functional_graph(layer) is None:
            kwargs = {**kwargs, "training": False}  # which augmentations need
        copy = _as_is if layer.name in self.as_is else _copied
        return self._call(copy, layer, *args, **kwargs)

    def _with_means(self, norm: keras.layers.Layer, normalized: Any) -> Any:
        """Returns all outputs of a normalization: the normalized map, and of some its means."""
        if type(norm) is PooledBatchNormalization:
            return [normalized, self._call(_means, norm, normalized)]
        return normalized

    def _call(
        self,
        make: Callable[[Any], tuple[Any, Any]],
        layer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls what `make(layer)` returned at the first call, with its weights; None: it has them."""
        key = make, id(layer)
        with _copying(layer):
            if key in self._copies:
                return self._copies[key](*args, **kwargs)
            self._copies[key], weights = make(layer)
            outputs = self._copies[key](*args, **kwargs)
            if weights is not None:
                _set_weights(self._copies[key], weights)
        return outputs


def _project(
    projection: keras.layers.Layer, norm: keras.layers.Layer, inputs: Any
) -> Any:
    """Calls a projection that includes the normalization after it."""
    with _copying(projection):
        copy = type(projection).from_config(
            {**copied_config(projection), "use_bias": True}
        )
        outputs = copy(inputs)
        copy.set_weights(folded_weights(projection, norm))
    return outputs


@contextlib.contextmanager
def _copying(layer: Any) -> Iterator[None]:
    """Raises an `InputError` where Keras, or the code of a layer, cannot copy and call it."""
    try:
        yield
    except Exception as error:
        raise InputError(
            f"the model has no form for inference: layer {layer.name!r} cannot be copied ({one_line(error)})"
        ) from error


def _as_affine(norm: keras.layers.Layer) -> tuple[Any, Any]:
    """Returns the scale and offset that a normalization is."""
    affine = ChannelAffine(name=norm.name, dtype=norm.dtype_policy)
    return affine, scale_and_offset(norm)


def _means(norm: keras.layers.Layer) -> tuple[Any, Any]:
    """Returns the layer that averages the maps of a normalization."""
    means = keras.layers.GlobalAveragePooling2D(
        name=f"{norm.name}_means",
        data_format="channels_last",
        dtype=norm.dtype_policy,
    )
    return means, None


def _copied(layer: Any) -> tuple[Any, Any]:
    """Returns the form for inference of a layer, or of a model within the model."""
    if compat.functional_graph(layer) is not None:
        return for_inference(layer), None
    if isinstance(layer, Layer):
        return layer.for_inference(), None
    if isinstance(layer, keras.layers.Layer):
        return _as_is(layer)
    return layer, None  # an operation of Keras 3, such as an addition


def _as_is(layer: keras.layers.Layer) -> tuple[Any, Any]:
    """Returns an unchanged copy of a layer, and its weights."""
    config = copied_config(layer)
    if hasattr(layer, "get_vocabulary"):
        config["vocabulary"] = layer.get_vocabulary(include_special_tokens=False)
    return type(layer).from_config(config), layer.get_weights()


def _set_weights(copy: keras.layers.Layer, weights: Sequence[Any]) -> None:
    copy.set_weights(weights)
    for part in (copy, *compat.sublayers(copy)):
        if isinstance(part, keras.layers.Normalization):
            part.finalize_state()  # in Keras 3 it computes with copies of its weights
