# SPDX-License-Identifier: Apache-2.0
"""Counts parameters, FLOPs and memory of a built model, by the conventions of the papers' tables.

Parameters are the trainable ones: gamma and beta of a batch normalization, not its moving statistics.
FLOPs are twice the multiply-adds of convolutions, projections, both steps of the lambda layer and both
products of attention; normalization, activation, pooling and addition are not counted. A local scope counts
in full at every position, also at the borders, but is at most the side of the map; so do the windows of
HaloAttention. The products of queries with tables of relative positions are counted by the tables' lengths.
Memory as in Table 4 of the lambda paper: one float32 number per pair of positions, in the embeddings of
lambda layers (k numbers per pair, shared by the batch) or in the attention maps (one per head and image), on
maps of a block's output size.
"""

import math
from collections.abc import Callable

from lambdanet.backend import Tensor, Variable, compat, keras
from lambdanet.backend.tensors import per_axis
from lambdanet.core.errors import InputError
from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.channel_attention import EfficientChannelAttention, SqueezeExcite
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.slice_lambda_layer import SliceLambdaLayer
from lambdanet.models.output_stride import ShiftedCopies

PAIRS_BATCH = 128  # images that have attention maps at the same time, in Table 4


def count_parameters(model: keras.Model) -> int:
    """Returns the number of trainable parameters of a functional model."""
    return _size(model.trainable_weights)


def count_flops(model: keras.Model, count_lambdas: bool = True) -> int:
    """Returns the FLOPs of one forward pass over one image.

    Args:
      model: a functional model built for a known input size.
      count_lambdas: whether to count computing and applying lambdas, or only the layers' projections.

    Raises:
      InputError: the input size is unknown, or the model has an output stride.
    """
    if any(isinstance(layer, ShiftedCopies) for layer in model.layers):
        raise InputError("FLOPs of a model with an output_stride are not counted")
    if None in model.input_shape[1:]:
        raise InputError(
            f"FLOPs need a known input size, got a model of {model.input_shape}; pass input_size="
        )
    return 2 * sum(multiply_adds(layer, count_lambdas) for layer in model.layers)


def multiply_adds(layer: keras.layers.Layer, count_lambdas: bool) -> int:
    """Returns the multiply-adds of a layer of a functional model for one image; see `count_flops`."""
    if isinstance(layer, LambdaLayer) and not count_lambdas:
        return _projections(layer)
    return MULTIPLY_ADDS.get(type(layer), lambda _: 0)(layer)


def count_pair_memory(model: keras.Model) -> int:
    """Returns the bytes of embeddings and attention maps, by the formulas of Table 4.

    Args:
      model: a functional model built for a known input size, whose lambda layers have positions.
    """
    numbers: dict[int, int] = {}  # by owner: layers may share an embedding
    pools = {
        id(pool.input): pool
        for pool in model.layers
        if isinstance(pool, compat.AveragePooling2D)
    }
    for layer in model.layers:
        if type(layer) not in PAIRS:
            continue
        owner = layer
        depth = PAIRS_BATCH * layer.num_heads
        if isinstance(layer, LambdaLayer):
            owner = layer.position
            depth = layer.key_dim * layer.intra_depth
        last = pools.get(id(layer.output), layer)
        pairs = PAIRS[type(layer)](*last.output.shape[1:3])
        numbers[id(owner)] = max(pairs * depth, numbers.get(id(owner), 0))
    return 4 * sum(numbers.values())


def _size(weights: list[Variable]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)


def _kernel_size(layer: keras.layers.Layer) -> int:
    return _size(
        [weight for weight in layer.weights if "kernel" in compat.variable_name(weight)]
    )


def _num_positions(maps: Tensor) -> int:
    return math.prod(maps.shape[1:-1])


def _convolution(layer: keras.layers.Layer) -> int:
    """The kernel at every position of the output, of which a dense layer has one."""
    return _num_positions(layer.output) * _kernel_size(layer)


def _efficient_channel_attention(layer: EfficientChannelAttention) -> int:
    return layer.input.shape[-1] * layer.kernel.shape[0]


def _projections(layer: keras.layers.Layer) -> int:
    """The projections of a layer, its kernels, at every position of the input."""
    return _num_positions(layer.input) * _kernel_size(layer)


def _lambda_layer(layer: LambdaLayer) -> int:
    spatial = layer.input.shape[1:-1]
    n = math.prod(spatial)
    h = layer.num_heads
    k = layer.key_dim
    u = layer.intra_depth
    lambdas = h if layer.multi_head else 1
    v = layer.output.shape[-1] // h
    context = [1] if layer.content else []
    if layer.position is not None:
        sides = spatial[isinstance(layer, SliceLambdaLayer) :]
        scopes = per_axis(getattr(layer.position, "scope", None), len(sides))
        seen = [min(r or side, side) for r, side in zip(scopes, sides, strict=True)]
        axis = layer.position.causal_axis
        if axis is not None and scopes[axis] is not None:
            seen[axis] = min(scopes[axis] // 2 + 1, spatial[axis])
        context.append(math.prod(seen))
    if isinstance(layer, SliceLambdaLayer):
        context.append(min(layer.slice_scope, spatial[0]))
    # For content and positions each: computing the lambdas, and applying them.
    return _projections(layer) + sum(
        n * m * lambdas * k * u * v + n * h * k * v for m in context
    )


def _attention(
    layer: keras.layers.Layer, context: int, embeddings: int, queries: int | None = None
) -> int:
    """Projections, and attention to `context` positions and `embeddings` offsets.

    By default, with one query per position.
    """
    h = layer.num_heads
    v = layer.output.shape[-1] // h
    k = layer.key_dim or (layer.filters or layer.input.shape[-1]) // h
    n = queries or _num_positions(layer.input)
    return _projections(layer) + n * h * (context * (k + v) + embeddings * k)


def _global_attention(layer: GlobalAttention) -> int:
    height, width = layer.input.shape[1:-1]
    return _attention(layer, height * width, 2 * (height + width) - 2)


def _axial_attention(layer: AxialAttention) -> int:
    """Along the height and along the width, both with all queries."""
    height, width = layer.input.shape[1:-1]
    return _attention(layer, height + width, 2 * (height + width) - 2)


def _linear_attention(layer: LinearAttention) -> int:
    h = layer.num_heads
    v = layer.output.shape[-1] // h
    k = layer.key_dim or v
    # One k x v matrix per head is computed, and applied.
    return _projections(layer) + 2 * _num_positions(layer.input) * h * k * v


def _local_attention(layer: LocalAttention) -> int:
    context = math.prod(min(layer.scope, side) for side in layer.input.shape[1:-1])
    return _attention(layer, context, layer.scope)


def _halo_attention(layer: HaloAttention) -> int:
    window = layer.block_size + 2 * layer.halo_size
    context = math.prod(min(window, side) for side in layer.input.shape[1:-1])
    queries_kernel, *_ = (
        w for w in layer.weights if "queries/kernel" in compat.variable_name(w)
    )
    channels, depth = queries_kernel.shape
    tables = _size([layer.height_table, layer.width_table]) // (
        depth // layer.num_heads
    )
    positions = _num_positions(layer.input)
    queries = _num_positions(layer.output)
    skipped = (positions - queries) * channels * depth  # queries that the strides skip
    return _attention(layer, context, tables, queries) - skipped


MULTIPLY_ADDS: dict[type, Callable[..., int]] = {
    keras.layers.Conv2D: _convolution,
    keras.layers.Conv3D: _convolution,
    keras.layers.Conv2DTranspose: _projections,
    keras.layers.Conv3DTranspose: _projections,
    keras.layers.DepthwiseConv2D: _convolution,
    keras.layers.Dense: _convolution,
    SqueezeExcite: _kernel_size,
    EfficientChannelAttention: _efficient_channel_attention,
    LambdaLayer: _lambda_layer,
    SliceLambdaLayer: _lambda_layer,
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
