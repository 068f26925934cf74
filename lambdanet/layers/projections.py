# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of a lambda layer, with the masks that hide some of them."""

from typing import Any, NamedTuple

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import (
    at_least_float32,
    product,
    sizes,
)
from lambdanet.layers.call_arguments import read_masks
from lambdanet.ops import content_lambdas, reference
from lambdanet.ops.position_term import Geometry


class Projections(NamedTuple):
    """What the lambdas of a layer are made of and applied to, one tensor for each lambda, and its masks.

    Attributes:
      queries: [b, *query_size, h, k], of all positions where outputs are averages over windows.
      keys: [b, *context_size, k, u], not yet normalized; None without content.
      values: [b, *context_size, v, u], zero in padding.
      attention_mask: what each query sees of the context, [n, m] or [b, n, m], also along a causal axis;
        None: no mask was given, and no reference needs it.
      padding_mask: the context positions that are no padding, [b, m]; None: all.
      query_mask: the queries that are no padding, [b, *query_size]; None: all.
    """

    queries: list[Tensor]
    keys: list[Tensor | None]
    values: list[Tensor]
    attention_mask: Tensor | None
    padding_mask: Tensor | None
    query_mask: Tensor | None

    def of_lambda(self, index: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Returns the queries, keys and values of one lambda."""
        return self.queries[index], self.keys[index], self.values[index]

    def visible_shares(self, geometry: Geometry, dtype: K.DType) -> Tensor | None:
        """Returns the share of each window that is no padding, [b, *output_size, 1]; None: all of each."""
        if self.query_mask is None or not geometry.has_pool:
            return None
        visible = K.cast(self.query_mask, dtype)
        return geometry.pool(visible[..., K.newaxis, K.newaxis])[..., 0]


def project(
    layer: Any,
    inputs: Tensor,
    context: Tensor | None = None,
    attention_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    mask: Tensor | None = None,
    training: bool | None = None,
) -> Projections:
    """Computes the queries, keys and values of a lambda layer; arguments as in its `call`."""
    attention_mask, padding_mask = read_masks(
        layer, inputs, context, attention_mask, padding_mask, mask
    )
    inputs = K.cast(inputs, layer.compute_dtype)
    if context is not None:
        context = K.cast(context, layer.compute_dtype)
    query_mask = None  # [b, *query_size]
    if padding_mask is not None and context is None:
        query_mask = K.reshape(padding_mask, sizes(inputs)[:-1])
    context = inputs if context is None else context
    axes = layer.geometry.along(len(inputs.shape) - 2)
    if any(axis.query_strides > 1 for axis in axes):
        every = [slice(None, None, axis.query_strides) for axis in axes]
        every_query = (slice(None), *every)
        inputs = inputs[every_query]
        query_mask = None if query_mask is None else query_mask[every_query]
    by_pairs = attention_mask is not None or layer.implementation == "reference"
    if by_pairs and layer.causal_axis is not None:
        earlier = reference.causal_mask(
            sizes(inputs)[1:-1],
            sizes(context)[1:-1],
            layer.causal_axis,
            axes[layer.causal_axis].query_strides,
        )
        attention_mask = earlier if attention_mask is None else attention_mask & earlier
    # One map for each lambda: [b, *query_size, h, k], [b, *context_size, k, u], [b, *context_size, v, u].
    h = layer.num_heads // layer.num_lambdas
    k = layer.key_dim
    v = layer.value_dim
    u = layer.intra_depth
    queries = _maps(
        layer, inputs, layer._queries, [h, k], layer._queries_norm, training, query_mask
    )
    values = _maps(
        layer,
        context,
        layer._values,
        [v, u],
        layer._values_norm,
        training,
        padding_mask,
    )
    keys: list[Any] = [None] * layer.num_lambdas
    if layer.content:
        keys = _maps(layer, context, layer._keys, [k, u])
    if layer.query_normalization == "softmax":
        queries = [_softmax(x) for x in queries]
    if padding_mask is not None:
        values = [_without_padding(x, padding_mask) for x in values]
    if query_mask is not None and layer.geometry.has_pool:
        queries = [_without_padding(x, query_mask) for x in queries]
    return Projections(queries, keys, values, attention_mask, padding_mask, query_mask)


def _maps(
    layer: Any,
    x: Tensor,
    projection: Any,
    depth: list[int],
    norm: Any = None,
    training: bool | None = None,
    mask: Tensor | None = None,
) -> list[Tensor]:
    """Projects and normalizes: [b, *size, c] -> a list of one [b, *size, *depth] per lambda.

    One spatial axis serves every kind of input, and the axis of size 1 allows the fused batch
    normalization.
    """
    b, *size, channels = sizes(x)
    y = projection(K.reshape(x, [b, product(size), 1, channels]))
    if norm is not None:
        if mask is not None:  # of the positions that count in the statistics
            mask = K.reshape(mask, [b, product(size), 1])
        y = norm(y, training=training, mask=mask)
    # The bias may be a normalization that was folded.
    if layer.compute_dtype == "float16" and (norm or projection.use_bias):
        # Below 2^16 for the product of a query and a content lambda, also where the moving variance is
        # almost 0 and what is not the mean becomes large.
        bound = (2**15 / (layer.key_dim * layer.intra_depth)) ** 0.5
        y = K.minimum(K.maximum(y, -bound), bound)
    # Separated on one axis of positions, so that no tensor of an exported model has more than four axes.
    maps = [y]
    if layer.num_lambdas > 1:
        y = K.reshape(y, [b, product(size), layer.num_lambdas, product(depth)])
        maps = K.unstack(y, layer.num_lambdas, axis=2)
    return [K.reshape(x, [b, *size, *depth]) for x in maps]


def _softmax(queries: Tensor) -> Tensor:
    """Normalizes queries [b, *query_size, h, k] over their depth."""
    flat = at_least_float32(content_lambdas.flatten_map(queries))
    return K.reshape(K.cast(K.softmax(flat), queries.dtype), sizes(queries))


def _without_padding(x: Tensor, mask: Tensor) -> Tensor:
    """Replaces padding by zeros: [b, *size, x, y], under a mask [b, *size] or [b, m]."""
    mask = K.reshape(mask, [*sizes(x)[:-2], 1, 1])
    return K.where(mask, x, K.zeros([], x.dtype))
