# SPDX-License-Identifier: Apache-2.0
"""Networks for volumes out of networks for pictures, with the same outputs on equal slices."""

from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.backend.tensors import per_axis, sizes
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, check_count, invalid
from lambdanet.layers.argument_checks import check_scope
from lambdanet.layers.batch_norm import BatchNormalization
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.layer import check_plain, copied_config
from lambdanet.layers.position_argument import with_position
from lambdanet.layers.position_embedding import RelativePositionEmbedding
from lambdanet.layers.stochastic_depth import StochasticDepth
from lambdanet.models.output_stride import InterleavedMaps, ShiftedCopies
from lambdanet.models.streaming import POINTWISE

# Layers that treat all positions of a map alike, on any number of axes.
SAME = (
    *POINTWISE,
    BatchNormalization,
    StochasticDepth,
    keras.layers.BatchNormalization,
    keras.layers.Dropout,
)
GLOBAL_POOLS = {
    keras.layers.GlobalAveragePooling2D: keras.layers.GlobalAveragePooling3D,
    keras.layers.GlobalMaxPooling2D: keras.layers.GlobalMaxPooling3D,
}


@keras.saving.register_keras_serializable("lambdanet")
class OverSlices(keras.layers.Wrapper):
    """Calls a layer for maps on each slice of a volume, with all slices in one batch.

    Input: [b, slices, ...], or a list of them. Output: [b, slices, ...], or several.
    """

    def build(self, input_shape: Any) -> None:
        is_one = not isinstance(input_shape[0], list | tuple)
        shapes = [input_shape] if is_one else input_shape
        shapes = [(None, *shape[2:]) for shape in shapes]
        if not self.layer.built:
            self.layer.build(shapes[0] if is_one else shapes)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        b, slices = sizes(K.flatten(inputs)[0])[:2]
        maps = K.map_structure(
            lambda x: K.reshape(x, [b * slices, *sizes(x)[2:]]), inputs
        )
        outputs = self.layer(maps)  # with the same `training`, by Keras
        return K.map_structure(
            lambda x: K.reshape(x, [b, slices, *sizes(x)[1:]]), outputs
        )


def inflate(
    model: keras.Model, depth: int | None = None, scope: int = 1
) -> keras.Model:
    """Returns a network for pictures as one for volumes, whose outputs on equal slices are the same.

    Convolutions and lambda layers get a third axis; the content lambda is that of the whole volume, and
    global pools average over it. What a scope adds begins at zero, and can be trained. Other layers,
    such as attention, depthwise and grouped convolutions, pools and squeeze-and-excitation, compute each
    slice for itself, as `OverSlices`. No layer reduces the number of slices.

    Args:
      model: a functional or Sequential model of maps [b, h, w, c], such as any of the zoo; it is not changed.
      depth: the number of slices; None: open.
      scope: the slices, odd, that each convolution larger than 1x1 sees around its own, and each position
        lambda.

    Returns:
      A functional model with a copy of the weights: volumes [b, slices, h, w, c] -> the outputs of `model`;
      those that are maps have slices. Equal up to rounding: 1e-5 in float32.

    Raises:
      InputError: a layer has no such form, and the message names it; or `depth` is less than
        (scope + 1) / 2, where parts of the scope see no slice.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> volumes = inflate(model, depth=8, scope=3)
      >>> tuple(volumes(keras.ops.zeros([1, 8, 32, 32, 3])).shape)
      (1, 10)
    """
    which_keras.check_keras_3(model, "the model")
    graph = compat.graph_of(model)
    scope = check_scope(scope)
    needed = scope // 2 + 1
    if depth is not None and check_count("depth", depth) < needed:
        raise invalid("depth", f"at least {needed} for scope={scope}", depth)
    check_plain(model, "a network for volumes")
    if all(len(x.shape) != 4 for x in graph.inputs):
        raise invalid("the input of the model", "[b, h, w, c]", model.input_shape)
    volumes = _Volumes(scope)
    for x in graph.inputs:
        shape = [depth, *x.shape[1:]] if len(x.shape) == 4 else x.shape[1:]
        volumes.tensors[id(x)] = keras.Input(shape, dtype=x.dtype, name=x.name)
    compat.rebuild(compat.layer_calls(graph), volumes.tensors, volumes.add)
    structures = K.map_structure(
        lambda x: volumes.tensors[id(x)], (graph.input, graph.output)
    )
    return keras.Model(*structures, name=model.name)


class _Volumes:
    """A model while it is rebuilt for volumes.

    Attributes:
      tensors: the tensors of the new model, by the identity of the old one's.
    """

    def __init__(self, scope: int):
        self._scope = scope
        self._copies: dict[int, Any] = {}  # of layers and of position embeddings
        self.tensors: dict[int, Any] = {}

    def add(self, call: compat.Call, args: Any, kwargs: Any) -> Any:
        """Adds a call of a layer of the old model, and returns its outputs."""
        layer = call.layer
        if not isinstance(layer, keras.layers.Layer):
            raise _cannot_inflate(layer, "it is an operation, no layer")
        given = K.flatten([call.args, call.kwargs])
        old = [x for x in given if id(x) in self.tensors]
        from_maps = any(len(x.shape) == 4 for x in old)
        to_maps = all(len(x.shape) == 4 for x in K.flatten(call.results)[:1])
        if id(layer) not in self._copies:
            self._copies[id(layer)] = self._form_of(layer, from_maps, to_maps)
        copy = self._copies[id(layer)]
        kwargs = {name: x for name, x in kwargs.items() if x is not None}
        options = [x for x in K.flatten([args[1:], kwargs]) if not isinstance(x, bool)]
        if from_maps and options:
            raise _cannot_inflate(layer, "its call has other arguments")
        is_valid = isinstance(copy, keras.layers.Conv3D) and copy.padding == "valid"
        if is_valid and copy.kernel_size[0] > 1:
            beyond = copy.kernel_size[0] // 2
            pad = keras.layers.ZeroPadding3D(
                (beyond, 0, 0), data_format="channels_last"
            )
            args = [pad(args[0])]
        elif not isinstance(copy, OverSlices):
            ranks = [len(x.shape) + (len(x.shape) == 4) for x in old]
            if ranks != [len(self.tensors[id(x)].shape) for x in old]:
                raise _cannot_inflate(layer, "it reads a number of each slice")
        results = copy(*args, **kwargs)
        _copy_weights(layer, copy)
        return results

    def _form_of(self, layer: Any, from_maps: bool, to_maps: bool) -> Any:
        """Returns the form of a layer for volumes, without the weights."""
        kind = type(layer)
        config = copied_config(layer)
        if not from_maps:
            if kind is keras.layers.Reshape and to_maps:
                # Gates for all positions of a map become those for all of a volume.
                config["target_shape"] = (1, *layer.target_shape)
            elif to_maps:
                raise _cannot_inflate(layer, "it makes maps of what is none")
            return kind.from_config(config)
        if isinstance(layer, ShiftedCopies | InterleavedMaps):
            raise _cannot_inflate(layer, "it is of an output stride")
        if getattr(layer, "data_format", None) == "channels_first":
            raise _cannot_inflate(layer, "its channels are first")
        if kind in GLOBAL_POOLS:
            return GLOBAL_POOLS[kind].from_config(config)
        if not to_maps:
            raise _cannot_inflate(layer, "its outputs depend on the number of slices")
        if kind is keras.layers.Conv2D and layer.groups == 1:
            return self._convolution(layer, config)
        if isinstance(layer, LambdaLayer):
            return self._lambda_layer(layer, config)
        if kind in SAME and getattr(layer, "axis", -1) == -1:
            return kind.from_config(config)
        return OverSlices(kind.from_config(config), name=layer.name)

    def _convolution(self, layer: Any, config: dict[str, Any]) -> Any:
        size = layer.kernel_size
        config["kernel_size"] = (self._scope if max(size) > 1 else 1, *size)
        config["strides"] = (1, *layer.strides)
        config["dilation_rate"] = (1, *layer.dilation_rate)
        return keras.layers.Conv3D.from_config(config)

    def _lambda_layer(self, layer: LambdaLayer, config: dict[str, Any]) -> Any:
        if layer.content and layer.key_normalization != "softmax":
            raise _cannot_inflate(layer, "its content grows with the number of slices")
        if layer.causal is not False:
            raise _cannot_inflate(layer, "it is causal")
        config["strides"] = (1, *per_axis(layer.strides, 2))
        config["pool_size"] = (1, *per_axis(layer.pool_size, 2))
        position = layer.position
        if position is not None and id(position) not in self._copies:
            if not isinstance(position, RelativePositionEmbedding):
                raise _cannot_inflate(layer, "its positions are not relative")
            relative = copied_config(position)
            relative["scope"] = (self._scope, *per_axis(position.scope, 2))
            relative["dilation"] = (1, *per_axis(position.dilation, 2))
            relative["map_size"] = (None, *per_axis(position.map_size, 2))
            self._copies[id(position)] = type(position).from_config(relative)
        config = with_position(config, self._copies.get(id(position)))
        return type(layer).from_config(config)


def _copy_weights(layer: Any, copy: Any) -> None:
    """Sets the weights of a copy; those with an axis for slices are in the middle of it, among zeros."""
    position = getattr(layer, "position", None)
    axis = int(getattr(position, "num_lambdas", 1) > 1)  # after that of the lambdas
    values = []
    for value, variable in zip(layer.get_weights(), copy.weights, strict=True):
        if len(variable.shape) > value.ndim:
            whole = np.zeros(variable.shape, value.dtype)
            whole[(slice(None),) * axis + (whole.shape[axis] // 2,)] = value
            value = whole
        values.append(value)
    copy.set_weights(values)


def _cannot_inflate(layer: Any, reason: str) -> InputError:
    kind = type(layer).__name__
    return InputError(
        f"layer {layer.name!r} ({kind}) has no form for volumes: {reason}"
    )
