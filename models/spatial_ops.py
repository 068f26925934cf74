# SPDX-License-Identifier: Apache-2.0
"""The spatial operations of a residual block: a convolution, or a layer in its place."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tf_keras as keras

from lambdanet.models.layer_builder import Parts

Layer = Callable[..., keras.layers.Layer]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in a network a spatial operation stands.

    Attributes:
      name: of the operation; the names of its layers begin with it.
      filters: the width of the bottleneck.
      strides: by how much the operation reduces the resolution.
      stage: its stage, counted from 0 for c2.
      index: of its block within the stage, counted from 1.
      side: the side of the map that it reads, for images of the size that the architecture is measured at.
    """

    name: str
    filters: int
    strides: int
    stage: int
    index: int
    side: int


# Takes a map [b, h, w, c] and its place; returns the transformed map at 1 / strides of the resolution.
Operation = Callable[[Any, Place], Any]


def convolution(parts: Parts) -> Operation:
    """The spatial operation of a plain ResNet (v1.5): a 3x3 convolution, strided where the block is."""
    return lambda x, place: parts.convolution(x, place.filters, 3, place.strides, f"{place.name}_conv")


def grouped_convolution(group_size: int) -> Callable[[Parts], Operation]:
    """The same convolution in groups of so many channels (Xie et al. 2016), for `ResNet.operations`."""

    def of(parts: Parts) -> Operation:
        def apply(x, place: Place):
            groups = place.filters // group_size
            return parts.convolution(x, place.filters, 3, place.strides, f"{place.name}_conv", groups)

        return apply

    return of


def replacement(layer: Layer, parts: Parts, options: Mapping[str, Any], pool_size: int = 3) -> Operation:
    """A layer that keeps the resolution in the place of the convolution, average-pooled where the block
    downsamples (Bello 2021, appendix F.2); a layer that can pool does so itself, at a lower cost.

    Args:
      layer: a class of layers; it takes `filters` and `name` beside its options.
      parts: gives the layer its regularizer and arguments of batch normalisation, if it takes them.
      options: of the layer; one given as `PerStage` has a value for each stage, one as `PerBlock` for each
        block. With "share_positions", the layers on maps of one size share one position embedding (Table 4).
      pool_size: of the average-pool; 0: none, the layer has `strides`.
    """
    accepted = set(inspect.signature(layer).parameters)
    common = {"batch_norm": parts.batch_norm, "kernel_regularizer": parts.kernel_regularizer}
    arguments = {**{name: value for name, value in common.items() if name in accepted}, **options}
    share_positions = arguments.pop("share_positions", False)
    pools_itself = pool_size > 0 and "pool_size" in accepted
    positions: dict[int, keras.layers.Layer] = {}

    def apply(x, place: Place):
        own = {name: _at(value, place) for name, value in arguments.items()}
        if pool_size == 0 or pools_itself:
            own["strides"] = place.strides
        if pools_itself and place.strides > 1:
            own["pool_size"] = pool_size
        if "map_size" in accepted and None in x.shape[1:3]:
            own.setdefault("map_size", place.side)
        if share_positions:
            if place.side not in positions:
                positions[place.side] = _position(layer(**own), f"position_{len(positions) + 1}")
            own["position"] = positions[place.side]
        x = layer(filters=place.filters, name=place.name, **own)(x)
        if pool_size and place.strides > 1 and not pools_itself:
            name = f"{place.name}_pool"
            x = keras.layers.AveragePooling2D(pool_size, place.strides, "same", name=name)(x)
        return x

    return apply


class PerStage(tuple):
    """The values of an option in c2, c3, c4 and c5."""


@dataclasses.dataclass(frozen=True)
class PerBlock:
    """An option whose value follows from where the layer stands."""

    at: Callable[[Place], Any]


def options_of(layer: Layer) -> set[str]:
    """Returns the names of the options of a layer that the trunk leaves open."""
    fixed_by_the_trunk = {"filters", "strides", "pool_size", "batch_norm", "kernel_regularizer", "kwargs"}
    options = set(inspect.signature(layer).parameters) - fixed_by_the_trunk
    return options | ({"share_positions"} if "position" in options else set())


def _at(value: Any, place: Place) -> Any:
    if isinstance(value, PerBlock):
        return value.at(place)
    return value[place.stage] if isinstance(value, PerStage) else value


def _position(layer: keras.layers.Layer, name: str) -> keras.layers.Layer:
    """Returns an embedding such as the one of the layer, but nobody's own."""
    return type(layer.position).from_config({**layer.position.get_config(), "name": name})
