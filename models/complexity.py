# SPDX-License-Identifier: Apache-2.0
"""Counts parameters, FLOPs and memory of a built model, by the conventions of the papers' tables.

Parameters are the trainable ones: gamma and beta of a batch normalization, not its moving statistics.
FLOPs are twice the multiply-adds of convolutions, projections, both steps of the lambda layer and both
products of attention; normalization, activation, pooling and addition are not counted. A local scope counts
in full at every position, also at the borders, but is at most the side of the map; so do the windows of
HaloAttention. The products of queries with tables of relative positions are counted by the tables' lengths.
Memory is that of Table 4 of the lambda paper: one float32 number per pair of positions, in the embeddings of
lambda layers (k numbers per pair, shared by the batch) or in the attention maps (one per head and image), on
maps of a block's output size.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.errors import InputError
from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.efficient_channel_attention import EfficientChannelAttention
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.squeeze_excite import SqueezeExcite
from lambdanet.models.layer_builder import LayerBuilder


@dataclasses.dataclass(frozen=True)
class LayerSize:
    """The size of a layer on a map of known size.

    Attributes:
      parameters: the trainable parameters.
      multiply_adds: the multiply-adds for one image.
      projections: the same without computing and applying lambdas.
    """

    parameters: int
    multiply_adds: int
    projections: int

    @classmethod
    def of(cls, layer: keras.layers.Layer) -> "LayerSize":
        """Returns the size of a layer of a functional model."""
        count = MULTIPLY_ADDS.get(type(layer), lambda _: 0)
        without_lambdas = _projections if isinstance(layer, LambdaLayer) else count
        return cls(_size(layer.trainable_weights), count(layer), without_lambdas(layer))


@dataclasses.dataclass(frozen=True)
class LayerCounter(LayerBuilder):
    """Counts the layers of a network without a model of it; equal ones on equal maps once per process.

    Attributes:
      sizes: names and sizes of the layers so far.
    """

    sizes: list[tuple[str, LayerSize]] = dataclasses.field(default_factory=list)

    def connect(self, layer, inputs):
        shapes = K.map_structure(lambda x: x.shape, inputs)
        key = repr((type(layer), {**layer.get_config(), "name": None}, shapes))
        if key not in _SIZES:
            outputs = super().connect(layer, inputs)
            placeholders = K.map_structure(lambda x: _placeholder(tuple(x.shape[1:])), outputs)
            _SIZES[key] = LayerSize.of(layer), placeholders
        size, outputs = _SIZES[key]
        self.sizes.append((layer.name, size))
        return outputs

    def act(self, x, name):
        return x  # an activation has no parameters, and is not counted

    def include(self, network):
        self.sizes.extend((layer.name, LayerSize.of(layer)) for layer in network.layers)

    def parameters(self, repeats: Mapping[str, int]) -> int:
        """Returns the number of trainable parameters; `repeats` as for `count_parameters`."""
        return sum(_repeats(name, repeats) * size.parameters for name, size in self.sizes)

    def flops(self, repeats: Mapping[str, int], count_lambdas: bool = True) -> int:
        """Returns the FLOPs of one forward pass over one image; arguments as for `count_flops`."""
        return 2 * sum(
            _repeats(name, repeats) * (size.multiply_adds if count_lambdas else size.projections)
            for name, size in self.sizes
        )


_SIZES: dict[str, tuple[LayerSize, Any]] = {}  # with placeholders of the outputs


@functools.cache
def _placeholder(shape: tuple[int, ...]) -> Any:
    """A symbolic tensor that does not keep the layer before it in memory."""
    return keras.Input(shape)


def count_parameters(model: keras.Model, repeats: Mapping[str, int] | None = None) -> int:
    """Returns the number of trainable parameters.

    Args:
      model: a functional model.
      repeats: the number of blocks that a block stands for, if the model is `zoo.condensed_model`'s.
    """
    total = 0
    counted: set[int] = set()  # layers may share an embedding
    for layer in model.layers:
        weights = [weight for weight in layer.trainable_weights if id(weight) not in counted]
        counted.update(map(id, weights))
        total += _repeats(layer.name, repeats or {}) * _size(weights)
    return total


def count_flops(
    model: keras.Model, repeats: Mapping[str, int] | None = None, count_lambdas: bool = True
) -> int:
    """Returns the FLOPs of one forward pass over one image.

    Args:
      model: a functional model built for a known input size.
      repeats: the number of blocks that a block stands for, if the model is `zoo.condensed_model`'s.
      count_lambdas: whether to count computing and applying lambdas, or only the layers' projections.

    Raises:
      InputError: the input size is unknown.
    """
    if None in model.input_shape[1:]:
        raise InputError(
            f"FLOPs need a known input size, got a model of {model.input_shape}; pass input_size="
        )
    counter = LayerCounter()
    counter.include(model)
    return counter.flops(repeats or {}, count_lambdas)


def count_pair_memory(model: keras.Model, batch_size: int = 128) -> int:
    """Returns the bytes of embeddings and attention maps, by the formulas of Table 4.

    Args:
      model: a functional model built for a known input size, whose lambda layers have positions.
      batch_size: the number of images that have attention maps at the same time.
    """
    numbers: dict[int, int] = {}  # by owner: layers may share an embedding
    pools = {id(pool.input): pool for pool in model.layers if isinstance(pool, K.AveragePooling2D)}
    for layer in model.layers:
        if type(layer) not in PAIRS:
            continue
        owner, depth = layer, batch_size * layer.num_heads
        if isinstance(layer, LambdaLayer):
            owner, depth = layer.position, layer.key_dim * layer.intra_depth
        last = pools.get(id(layer.output), layer)
        pairs = PAIRS[type(layer)](*_output_shape(last)[1:3])
        numbers[id(owner)] = max(pairs * depth, numbers.get(id(owner), 0))
    return 4 * sum(numbers.values())


def _size(weights) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _repeats(name: str, repeats: Mapping[str, int]) -> int:
    """The number of layers that a layer of a condensed network stands for, by the block in its name."""
    return next((count for block, count in repeats.items() if name.startswith(f"{block}_")), 1)


def _input_shape(layer: keras.layers.Layer) -> tuple[int, ...]:
    return tuple(layer.input.shape)


def _output_shape(layer: keras.layers.Layer) -> tuple[int, ...]:
    return tuple(layer.output.shape)


def _kernel_size(layer: keras.layers.Layer) -> int:
    return _size(weight for weight in layer.weights if "kernel" in K.variable_name(weight))


def _convolution(layer: keras.layers.Layer) -> int:
    """The kernel at every position of the output, of which a dense layer has one."""
    return math.prod(_output_shape(layer)[1:-1]) * _kernel_size(layer)


def _efficient_channel_attention(layer: EfficientChannelAttention) -> int:
    return _input_shape(layer)[-1] * layer.kernel.shape[0]


def _projections(layer: keras.layers.Layer) -> int:
    """The projections of a layer, its kernels, at every position of the input."""
    return math.prod(_input_shape(layer)[1:-1]) * _kernel_size(layer)


def _lambda_layer(layer: LambdaLayer) -> int:
    spatial = _input_shape(layer)[1:-1]
    n = math.prod(spatial)
    h, k, u = layer.num_heads, layer.key_dim, layer.intra_depth
    lambdas = h if layer.multi_head else 1
    v = _output_shape(layer)[-1] // h
    context = [1] if layer.content else []
    if layer.position is not None:
        scope = getattr(layer.position, "scope", None) or max(spatial)
        context.append(math.prod(min(scope, side) for side in spatial))
    # For content and position each: computing the lambdas, and applying them.
    return _projections(layer) + sum(n * m * lambdas * k * u * v + n * h * k * v for m in context)


def _attention(layer, context: int, embeddings: int, queries: int | None = None) -> int:
    """Attention to `context` positions and `embeddings` offsets; by default one query per position."""
    h, v = layer.num_heads, _output_shape(layer)[-1] // layer.num_heads
    k = layer.key_dim or (layer.filters or _input_shape(layer)[-1]) // h
    n = queries or math.prod(_input_shape(layer)[1:-1])
    return n * h * (context * (k + v) + embeddings * k)


def _global_attention(layer: GlobalAttention) -> int:
    height, width = _input_shape(layer)[1:-1]
    return _projections(layer) + _attention(layer, height * width, 2 * (height + width) - 2)


def _axial_attention(layer: AxialAttention) -> int:
    height, width = _input_shape(layer)[1:-1]
    return _projections(layer) + sum(_attention(layer, side, 2 * side - 1) for side in (height, width))


def _linear_attention(layer: LinearAttention) -> int:
    h, v = layer.num_heads, _output_shape(layer)[-1] // layer.num_heads
    k = layer.key_dim or v
    # One k x v matrix per head is computed, and applied.
    return _projections(layer) + 2 * math.prod(_input_shape(layer)[1:-1]) * h * k * v


def _local_attention(layer: LocalAttention) -> int:
    context = math.prod(min(layer.scope, side) for side in _input_shape(layer)[1:-1])
    return _projections(layer) + _attention(layer, context, layer.scope)


def _halo_attention(layer: HaloAttention) -> int:
    window = layer.block_size + 2 * layer.halo_size
    context = math.prod(min(window, side) for side in _input_shape(layer)[1:-1])
    queries_kernel, *_ = (w for w in layer.weights if "queries/kernel" in K.variable_name(w))
    channels, depth = queries_kernel.shape
    tables = _size([layer.height_table, layer.width_table]) // (depth // layer.num_heads)
    positions, queries = (math.prod(shape[1:-1]) for shape in (_input_shape(layer), _output_shape(layer)))
    skipped = (positions - queries) * channels * depth  # queries that the strides skip
    return _projections(layer) - skipped + _attention(layer, context, tables, queries)


MULTIPLY_ADDS: dict[type, Callable[..., int]] = {
    keras.layers.Conv2D: _convolution,
    keras.layers.DepthwiseConv2D: _convolution,
    keras.layers.Dense: _convolution,
    SqueezeExcite: _kernel_size,
    EfficientChannelAttention: _efficient_channel_attention,
    LambdaLayer: _lambda_layer,
    GlobalAttention: _global_attention,
    AxialAttention: _axial_attention,
    LinearAttention: _linear_attention,
    LocalAttention: _local_attention,
    HaloAttention: _halo_attention,
}

# The number of pairs of positions on a map of height x width that a layer stores numbers for.
PAIRS: dict[type, Callable[[int, int], int]] = {
    LambdaLayer: lambda height, width: (height * width) ** 2,
    GlobalAttention: lambda height, width: (height * width) ** 2,
    AxialAttention: lambda height, width: height * width * (height + width),
}
