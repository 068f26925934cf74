# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers, copies of layers, and sublayers that are built with their parent."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from lambdanet import backend as K
from lambdanet.backend import Shape, compat, keras, tensors
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, check_flags, invalid
from lambdanet.ops import kernels

# Arguments of Keras's layers.
FUNCTIONS = ("activation", "initializer", "regularizer", "constraint")


class Layer(keras.layers.Layer):
    """A layer that rejects empty maps, padding masks, and calls from tf_keras.

    A model of tf_keras would neither train nor save it.

    Attributes:
      INFERENCE_OPTIONS: the arguments that differ in a copy for inference.
      masked_ranks: the ranks of inputs that may have Keras's padding masks.
      takes_maps: whether the first input is a map [b, h, w, c] and nothing else.

    Raises:
      InputError: when called with a map that has a side of 0 or with another rank than the layer takes, with
        a padding mask, or with a tensor, by a layer or by a model of tf_keras; when built in float64 on
        torch.
    """

    INFERENCE_OPTIONS: ClassVar[dict[str, Any]] = {}
    masked_ranks: Sequence[int] = ()
    takes_maps = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if K.ENGINE == "torch" and self.compute_dtype == "float64":
            raise invalid(
                "dtype",
                "narrower than float64 on torch, where Keras computes part of it in float32",
                self.compute_dtype,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = type(self).__name__
        which_keras.check_caller(self)
        for value in K.flatten([args, kwargs]):
            which_keras.check_keras_3(value, f"an input of {name}")
            shape = getattr(value, "shape", ())
            if getattr(shape, "rank", 0) is not None and 0 in tuple(shape)[1:]:
                raise invalid("each side of a map", "at least 1", tuple(shape))
            has_mask = compat.mask_of(value) is not None
            if has_mask and len(shape) not in self.masked_ranks:
                raise InputError(
                    f"{name} takes no padding mask, such as that of an Embedding"
                )
        if self.takes_maps:
            check_rank(self, K.flatten([args, kwargs])[0].shape, 4)
        self.check_call(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def check_call(self, *args: Any, **kwargs: Any) -> None:
        """Checks the arguments of a call; `InputError` where they do not fit the layer."""

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Never propagates masks."""

    def for_inference(self) -> "Layer":
        """Returns a copy with the same outputs at inference, for `lambdanet.for_inference`."""
        copy = rebuild_layer(self, {**self.get_config(), **self.INFERENCE_OPTIONS})
        copy.set_weights(self.get_weights())
        return copy

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns what `build_from_config` needs, which includes how `quantize` has changed each part."""
        config = super().get_build_config()
        parts = {part.name: _quantization(part) for part in compat.sublayers(self)}
        quantized = {name: mode for name, mode in parts.items() if mode}
        return {**config, "quantized": quantized} if config and quantized else config

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Builds the layer, with parts that are quantized as those of the layer that was saved."""
        super().build_from_config(config)
        quantized = config.get("quantized", {})
        for part in compat.sublayers(self):
            if part.name in quantized:
                part.quantize(quantized[part.name])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, also of base classes, from the attributes of their names.

        Raises:
          AttributeError: an argument has no attribute.
        """
        config = super().get_config()
        for base in type(self).__mro__:
            if issubclass(base, Layer) and "__init__" in vars(base):
                for name in inspect.getfullargspec(base.__init__).args[1:]:
                    config[name] = getattr(self, name)
        for name, kind in (
            ("kernel_regularizer", keras.regularizers),
            ("embeddings_initializer", keras.initializers),
        ):
            if name in config:
                config[name] = kind.serialize(config[name])
        return config


class PointwiseLayer(Layer):
    """A layer that computes every position from itself, and passes Keras's padding masks on."""

    masked_ranks = range(2, 6)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return previous_mask

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)


class TableLayer(Layer):
    """A layer with tables of position embeddings, which graphs can have as constants.

    Args:
      constant_tables: whether a graph contains the tables of the trace, expanded as far as the size of the
        map is known, as constants, and computes by them as long as the tables have these values. Keras 3 on
        JAX and torch, whose compiled functions have all variables as arguments, has no constants.
      **kwargs: arguments of a Keras layer.
    """

    INFERENCE_OPTIONS: ClassVar[dict[str, Any]] = {"constant_tables": True}

    def __init__(self, constant_tables: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        check_flags(constant_tables=constant_tables)
        self.constant_tables = constant_tables

    def _compute_by_tables(
        self,
        compute: Callable[..., K.Tensor],
        variables: Sequence[K.Variable],
        dtype: K.DType,
    ) -> K.Tensor:
        """Returns `compute(*tables)`, of tables in a precision, which can be NumPy arrays."""

        def compute_by(*tables: Any) -> K.Tensor:
            return compute(*(tensors.cast(table, dtype) for table in tables))

        if kernels.kernels_for_device().device.has_constant_weights:
            return compute_by(*K.constants_of(variables))
        if self.constant_tables:
            return K.compute_by_constants(compute_by, variables)
        return compute_by(*variables)


def check_rank(layer: keras.layers.Layer, shape: Shape, rank: int) -> None:
    """Raises `InputError` for an input of another rank than a layer takes, or was built for."""
    if len(shape) != rank:
        axes = {3: "n", 4: "h, w", 5: "t, h, w"}[rank]
        name = f"the shape of the input of {type(layer).__name__}"
        raise invalid(name, f"[b, {axes}, c]", tuple(shape))


def strided_shape(shape: Shape, strides: tensors.PerAxis) -> Shape:
    """Returns the shape of maps with strides: [b, *size, c] -> [b, *size / strides, c], rounded up."""
    b, *size, channels = shape
    steps = tensors.per_axis(strides, len(size), "strides")
    sides = zip(size, steps, strict=True)
    size = [None if n is None else tensors.ceil_div(n, step) for n, step in sides]
    return (b, *size, channels)


def check_plain(layer: keras.layers.Layer, action: str) -> None:
    """Checks that no part of a layer or model has LoRA or is quantized, as its weights are then others.

    `InputError` names the first such part, and the action that needs plain weights.
    """
    for part in compat.sublayers(layer):
        change = _quantization(part)
        if getattr(part, "lora_enabled", False):
            change = "LoRA"
        if change:
            raise InputError(
                f"{action} needs plain weights, but {part.name!r} of {layer.name!r} has {change}: merge or "
                "remove it first"
            )


def check_unquantized(model: Any) -> None:
    """Checks that no part of a model of KerasHub is quantized: its configuration could not be loaded."""
    for part in compat.sublayers(model):
        if mode := _quantization(part):
            raise InputError(
                f"{type(model).__name__} cannot be saved with {mode} in {part.name!r}: save it first"
            )


def rebuild_layer(layer: keras.layers.Layer, config: Mapping[str, Any]) -> Any:
    """Returns a layer of the same class and name with another configuration, built for the same inputs.

    `InputError` where a part of it has LoRA or is quantized.
    """
    check_plain(layer, "the form for inference")
    copy = type(layer).from_config(config)
    copy.build_from_config(layer.get_build_config())
    return copy


def copied_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the configuration of a copy in the same process, with the layer's functions instead of names.

    Keras finds functions of the user by name only where they are registered, or another one of that name.
    """
    config = dict(layer.get_config())
    for name in config:
        if name.endswith(FUNCTIONS):
            value = getattr(layer, name, None)
            if inspect.isfunction(value):
                config[name] = value
    return config


def build_sublayer(layer: keras.layers.Layer, input_shape: Shape) -> keras.layers.Layer:
    """Creates the variables of a sublayer now, under its own name, and returns it.

    A layer that builds its sublayers in its own `build` has all its variables as soon as its input shape is
    known, with the names of the sublayers in theirs.
    """
    layer.build(input_shape)
    return layer


def build_projection(
    parent: keras.layers.Layer,
    name: str,
    channels: int,
    units: int,
    stddev: float,
    use_bias: bool = False,
) -> keras.layers.Dense:
    """Creates a linear map of maps [b, h, w, channels], in the precision of its parent."""
    dense = keras.layers.Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=compat.RandomNormal(stddev=stddev),
        kernel_regularizer=parent.kernel_regularizer,
        dtype=parent.dtype_policy,
        name=name,
    )
    return build_sublayer(dense, [None, None, None, channels])


def _quantization(part: keras.layers.Layer) -> str | None:
    """The mode in which a layer is quantized; None: in none."""
    return getattr(part, "quantization_mode", None)
