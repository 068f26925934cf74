# SPDX-License-Identifier: Apache-2.0
"""Spatial operations of a bottleneck block: a 3x3 convolution, a lambda layer, attention."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

from lambdanet.backend import Tensor, compat, keras
from lambdanet.backend.tensors import PerAxis
from lambdanet.core.errors import InputError
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.layer import copied_config
from lambdanet.layers.old_arguments import OLD_ARGUMENTS, translate
from lambdanet.models.layer_builder import LayerBuilder

Layer = Callable[..., keras.layers.Layer]
SET_BY_THE_TRUNK = {
    "filters",
    "strides",
    "pool_size",
    "batch_norm",
    "kernel_regularizer",
    "kwargs",
}


@dataclasses.dataclass(frozen=True)
class BlockContext:
    """The position of a block in its network, and what the network prescribes there.

    Attributes:
      name: the name of the block; the names of its layers begin with it.
      stage: the index of its stage, 0 for c2.
      index: its number within the stage, from 1.
      filters: the width of the bottleneck.
      output_filters: the channels of the block's output.
      strides: the factor by which the block reduces the resolution.
      map_size: the side of the map that it reads, for images of the network's `input_size`.
      se_ratio: the ratio of squeeze-and-excitation; 0 for none.
      drop_rate: the rate of stochastic depth.
    """

    name: str
    stage: int
    index: int
    filters: int
    output_filters: int
    strides: int
    map_size: int
    se_ratio: float = 0.0
    drop_rate: float = 0.0


class SpatialOperation:
    """The operation between the 1x1 convolutions of a block: [b, h, w, c] -> [b, h / s, w / s, filters]."""

    def option_names(self) -> set[str]:
        """The names of the options that a caller may override."""
        return set()

    def with_options(self, overrides: Mapping[str, Any]) -> "SpatialOperation":
        """Returns the operation for one network, with the overrides that are among its options."""
        return self

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> Tensor:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Convolution(SpatialOperation):
    """A convolution of size 3, strided where the block is (ResNet v1.5)."""

    group_size: int = 0  # channels per group (Xie et al. 2016); 0: a single group
    kernel_size: PerAxis = 3

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> Tensor:
        groups = context.filters // self.group_size if self.group_size else 1
        return builder.convolution(
            x,
            context.filters,
            self.kernel_size,
            context.strides,
            f"{context.name}_spatial_conv",
            groups,
        )


@dataclasses.dataclass(frozen=True)
class PerBlock:
    """An option of a layer whose value depends on its block."""

    value: Callable[[BlockContext], Any]


def per_stage(*values: Any) -> PerBlock:
    """Returns an option with a value for each of c2, c3, c4 and c5."""
    return PerBlock(lambda context: values[context.stage])


@dataclasses.dataclass(frozen=True)
class LayerOperation(SpatialOperation):
    """A layer in place of the convolution, average-pooled where the block downsamples (Bello 2021, F.2).

    Attributes:
      layer: a class of layers that takes `filters`, `kernel_regularizer` and `name` beside its options.
      options: options of the layer; a value may be `PerBlock`.
      pool_size: the size of the average-pool; 0: none, as the layer takes `strides`.
      fixed_map: whether the layer needs a `map_size` where the size of the map is unknown.
    """

    layer: Layer
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pool_size: int = 3
    fixed_map: bool = False

    def option_names(self) -> set[str]:
        return option_names(self.layer)

    def with_options(self, overrides: Mapping[str, Any]) -> Self:
        given = {
            name: value
            for name, value in overrides.items()
            if name in self.option_names()
        }
        return dataclasses.replace(self, options={**self.options, **given})

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> Tensor:
        x = self.layer(**self._arguments(builder, x, context))(x)
        if self.pool_size and context.strides > 1:
            x = compat.AveragePooling2D(
                self.pool_size,
                context.strides,
                "same",
                name=f"{context.name}_spatial_pool",
            )(x)
        return x

    def _arguments(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> dict[str, Any]:
        options = {
            name: option.value(context) if isinstance(option, PerBlock) else option
            for name, option in self.options.items()
        }
        if self.fixed_map and None in x.shape[1:-1]:
            options.setdefault("map_size", context.map_size)
        if not self.pool_size:
            options["strides"] = context.strides
        return {
            "filters": context.filters,
            "kernel_regularizer": builder.kernel_regularizer,
            "name": f"{context.name}_spatial",
            **options,
        }


@dataclasses.dataclass(frozen=True)
class LambdaOperation(LayerOperation):
    """A lambda layer, which pools its outputs itself, at a lower cost.

    With the option `share_positions`, the layers on maps of one size share a position embedding (Table 4).
    """

    layer: Layer = LambdaLayer
    fixed_map: bool = True
    # Shared position embeddings by size of map.
    positions: dict[int, keras.layers.Layer] | None = None

    def option_names(self) -> set[str]:
        own = super().option_names() | {"share_positions"}
        return own | option_names(LambdaLayer)

    def with_options(self, overrides: Mapping[str, Any]) -> Self:
        own = dict(overrides)
        shared = own.pop("share_positions", False)
        if shared and "position" in own:
            raise InputError(
                "share_positions and position= exclude each other; pass only one"
            )
        return dataclasses.replace(
            super().with_options(own), positions={} if shared else None
        )

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> Tensor:
        arguments = {
            "batch_norm": builder.batch_norm,
            **self._arguments(builder, x, context),
            "strides": context.strides,
        }
        if context.strides > 1:
            arguments["pool_size"] = self.pool_size
        arguments = translate(arguments)
        if self.positions is not None:
            if context.map_size not in self.positions:
                layer: Any = self.layer(**arguments)
                own = layer.position
                config = {
                    **copied_config(own),
                    "name": f"position_{len(self.positions) + 1}",
                }
                self.positions[context.map_size] = type(own).from_config(config)
            arguments["position"] = self.positions[context.map_size]
            arguments.pop("embeddings_initializer", None)  # the shared embedding's own
        return self.layer(**arguments)(x)


def option_names(layer: Layer) -> set[str]:
    """Returns the names of a layer's options: its constructor's parameters that the trunk does not set."""
    names = set(inspect.signature(layer).parameters) - SET_BY_THE_TRUNK
    return names | OLD_ARGUMENTS if layer is LambdaLayer else names
