# SPDX-License-Identifier: Apache-2.0
"""The maps that lambda layers imply, from the layer's own queries, keys, values and embeddings.

Letters as in `lambdanet.ops.reference`, with q outputs that were asked for: memory grows with q m k u.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import at_least_float32, product, sizes
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.projections import Projections
from lambdanet.ops import blocking, content_lambdas, pooling, reference
from lambdanet.ops.position_term import Geometry


class _Chosen(NamedTuple):
    """The queries that some outputs of a layer are averages over.

    Attributes:
      outputs: the numbers of the outputs among the flattened ones, [q].
      places: the numbers of the queries in the window of each output among the flattened ones, [q, w]; 0 off
        the map.
      weights: the weight of each of them, 0 off the map, [q, w].
    """

    outputs: np.ndarray
    places: np.ndarray
    weights: np.ndarray


def maps(
    layer: LambdaLayer, parts: Projections, outputs: np.ndarray, state: Any
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Computes the maps of some outputs.

    Args:
      layer: the layer.
      parts: the projections of its inputs.
      outputs: the numbers of the outputs among the flattened ones, [q].
      state: that after earlier positions of a causal layer, or None.

    Returns:
      The fields of `lambdanet.explain.ImpliedAttention`.
    """
    chosen = _choose(layer.geometry, sizes(parts.queries[0])[1:-2], outputs)
    visible = _visible(layer, parts, chosen)
    found = []
    for index in range(len(parts.queries)):
        past = None if state is None else state[index]
        found.append(_maps_of_lambda(layer, parts, index, chosen, visible, past))
    contents, positions, outside = zip(*found, strict=True)
    fields = [_joined(contents), _joined(positions)]
    others = {}
    for name in outside[0]:
        others[name] = _side_by_side([outputs_of[name] for outputs_of in outside])
    dtype = at_least_float32(parts.values[0]).dtype
    shares = parts.visible_shares(layer.geometry, dtype)
    if shares is not None:
        # As in the layer, windows have averages over what is no padding.
        shares = K.reshape(shares, [sizes(shares)[0], -1])
        shares = K.take(shares, outputs, axis=1)  # [b, q]
        by_map = shares[:, K.newaxis, :, K.newaxis, K.newaxis]
        fields = [None if x is None else K.divide_no_nan(x, by_map) for x in fields]
        for name, x in others.items():
            others[name] = K.divide_no_nan(x, shares[..., K.newaxis])
    by_lambda = []
    for x in parts.values:
        flat = at_least_float32(content_lambdas.flatten_map(x))
        by_lambda.append(K.transpose(flat, [0, 1, 3, 2]))
    values = K.stack(by_lambda, axis=1)  # [b, 1 or h, m, u, v]
    if values.shape[3] == 1:
        fields = [None if x is None else x[..., 0] for x in fields]
        values = values[:, :, :, 0]
    return *fields, values, others


def _maps_of_lambda(
    layer: LambdaLayer,
    parts: Projections,
    index: int,
    chosen: _Chosen,
    visible: Tensor | None,
    past: Any,
) -> tuple[Tensor | None, Tensor | None, dict[str, Tensor]]:
    """Returns the content and the position map of lambda number `index`, and outputs without a map.

    Returns:
      [b, h, q, m, u] twice, or None, and by their names [b, q, h, v].
    """
    queries = content_lambdas.flatten_map(layer.geometry.pool(parts.queries[index]))
    queries = at_least_float32(K.take(queries, chosen.outputs, axis=1))  # [b, q, h, k]
    content = None
    position = None
    earlier = []
    if layer.content:
        content, added = _content(
            queries, parts.keys[index], layer.key_normalization, visible, past
        )
        earlier.append(added)
    if layer.position is not None:
        position, added = _position(layer, parts, index, chosen, visible, past)
        earlier.append(added)
    outside = {}
    if past is not None:
        outside["state"] = K.add_n([x for x in earlier if x is not None])
    if getattr(layer.position, "use_bias", False):
        bias = K.cast(K.convert_to_tensor(layer.position.bias), queries.dtype)
        added = K.matmul(queries, bias[:, K.newaxis])  # [b, q, h, 1]
        v = parts.values[index].shape[-2]
        outside["position_bias"] = K.repeat(added, v, axis=3)
    return content, position, outside


def _choose(geometry: Geometry, query_size: list[int], outputs: np.ndarray) -> _Chosen:
    """Returns the queries of outputs, on a map of `query_size`."""
    windows = []
    for n, axis in zip(query_size, geometry.along(len(query_size)), strict=True):
        lengths = axis.pool_size, axis.pool_strides
        windows.append(pooling.windows_along(n, *lengths))
    # Windows along the first axis follow each other: of a transposed map, they are in the order of outputs.
    numbers = np.arange(product(query_size)).reshape(query_size).T[None, ..., None]
    gathered = []
    for x in (numbers, np.ones_like(numbers)):
        collected = K.as_constant(blocking.gather_windows, x, windows[::-1])
        gathered.append(collected[outputs, :, 0])
    places, is_on_map = gathered
    weights = is_on_map / is_on_map.sum(1, keepdims=True)
    return _Chosen(outputs, places.astype(np.int32), weights)


def _visible(layer: LambdaLayer, parts: Projections, chosen: _Chosen) -> Tensor | None:
    """Returns what the outputs see of the context, [b or 1, q or 1, m]; None: everything."""
    # All queries of a window see the same: a causal axis has no pool, and a mask none at all.
    places = chosen.places.max(axis=1)
    mask = parts.attention_mask
    if mask is not None:
        mask = K.take(mask, places, axis=len(mask.shape) - 2)
    elif layer.causal_axis is not None:
        query_size = sizes(parts.queries[0])[1:-2]
        context_size = sizes(parts.values[0])[1:-2]
        axis = layer.causal_axis
        strides = layer.geometry.along(len(query_size))[axis].query_strides
        mask = reference.causal_mask(query_size, context_size, axis, strides, places)
    return content_lambdas.visible_pairs(mask, parts.padding_mask)


def _content(
    queries: Tensor,
    keys: Tensor,
    normalization: str | None,
    visible: Tensor | None,
    past: Any,
) -> tuple[Tensor, Tensor | None]:
    """Returns the content map of one lambda, and what earlier positions add.

    Args:
      queries: [b, q, h, k].
      keys: [b, *context_size, k, u].
      normalization: one of `content_lambdas.KEY_NORMALIZATIONS`.
      visible: as of `_visible`.
      past: the state of the lambda, or None.

    Returns:
      [b, h, q, m, u] and [b, q, h, v], or None without a state.
    """
    keys = at_least_float32(content_lambdas.flatten_map(keys))[:, K.newaxis]
    pairs = None if visible is None else visible[..., K.newaxis, K.newaxis]
    sums = None if past is None else _sums(past, *keys.shape[-2:])
    scale = 1.0
    if normalization == "softmax":
        if pairs is not None:
            keys = K.where(pairs, keys, K.dtype_min(keys.dtype))
        maximum = K.amax(keys, axis=2, keepdims=True)
        if sums is not None:
            maximum = K.maximum(maximum, sums[0])
            scale = K.exp(sums[0] - maximum)
        keys = K.exp(keys - maximum)  # [b, q or 1, m, k, u]
    if pairs is not None:
        keys = K.where(pairs, keys, K.zeros([], keys.dtype))
    divisor = K.sum(
        keys if normalization == "softmax" else K.square(keys), axis=2, keepdims=True
    )
    if sums is not None:
        divisor += scale * sums[2]
    if normalization == "l2":
        divisor = K.sqrt(divisor + 1e-12)
    elif normalization is None:
        divisor = K.ones_like(divisor)
    keys = K.divide_no_nan(keys, divisor)
    if keys.shape[1] == 1:
        content = K.einsum("bqhk,bmku->bhqmu", queries, keys[:, 0])
    else:
        content = K.einsum("bqhk,bqmku->bhqmu", queries, keys)
    if sums is None:
        return content, None
    factor = (scale / divisor)[:, :, 0]  # [b, q, k, u]
    lambdas = K.einsum("bqku,bkuv->bqkv", factor, sums[1])
    return content, K.einsum("bqhk,bqkv->bqhv", queries, lambdas)


def _sums(past: Any, k: int, u: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sums over earlier positions, of `causal_content.State`, by depth.

    Returns:
      The maximum, [b, 1, 1, k, u], weighted values, [b, k, u, v], and the divisor, [b, 1, 1, k, u].
    """
    total = past["total"] + past["error"]
    b, _, columns = sizes(total)
    total = K.transpose(K.reshape(total, [b, u, k, columns]), [0, 2, 1, 3])
    maximum = K.transpose(K.reshape(past["maximum"], [b, u, k]), [0, 2, 1])
    by_depth = [x[:, K.newaxis, K.newaxis] for x in (maximum, total[..., -1])]
    return by_depth[0], total[..., :-1], by_depth[1]


def _position(
    layer: LambdaLayer,
    parts: Projections,
    index: int,
    chosen: _Chosen,
    visible: Tensor | None,
    past: Any,
) -> tuple[Tensor, Tensor | None]:
    """Returns the position map of lambda number `index`, [b, h, q, m, u], and what earlier positions add.

    That is [b, q, h, v], or None without such positions in the state.
    """
    queries = at_least_float32(parts.queries[index])
    values = at_least_float32(parts.values[index])
    size = sizes(values)[1:-2]
    has_past = past is not None and "values" in past
    context = values
    if has_past:
        earlier = K.cast(past["values"], values.dtype)
        axis = 1 + (layer.causal_axis or 0)
        context = K.concatenate([earlier, values], axis=axis)
    flat = content_lambdas.flatten_map(queries)
    terms = []
    for places, weights in zip(chosen.places.T, chosen.weights.T, strict=True):
        embeddings = layer.position.pair_embeddings(
            queries, context, index, layer.geometry, places, past is not None
        )
        weights = K.cast(weights[:, np.newaxis, np.newaxis], flat.dtype)
        some = K.take(flat, places, axis=1) * weights
        terms.append(K.einsum("bqhk,qmku->bhqmu", some, embeddings))
    position = K.add_n(terms)
    added = None
    if has_past:
        b, h, q, _, u = sizes(position)
        position = K.reshape(position, [b, h, q, *sizes(context)[1:-2], u])
        before = sizes(earlier)[axis]
        along = (slice(None),) * (axis + 2)
        past_map = K.reshape(position[(*along, slice(0, before))], [b, h, q, -1, u])
        past_values = content_lambdas.flatten_map(earlier)
        added = K.einsum("bhqmu,bmvu->bqhv", past_map, past_values)
        position = position[(*along, slice(before, None))]
        position = K.reshape(position, [b, h, q, product(size), u])
    if visible is not None:
        pairs = visible[:, K.newaxis, ..., K.newaxis]
        position = K.where(pairs, position, K.zeros([], position.dtype))
    return position, added


def _joined(by_lambda: Sequence[Any]) -> Any:
    """Joins the maps of all lambdas along the heads; None where there are none."""
    return None if by_lambda[0] is None else K.concatenate(by_lambda, axis=1)


def _side_by_side(by_lambda: list[Any]) -> Any:
    """Puts the heads of all lambdas side by side: [b, q, h, v] each -> [b, q, d]."""
    joined = K.concatenate(by_lambda, axis=2)
    return K.reshape(joined, [*sizes(joined)[:2], -1])
