# SPDX-License-Identifier: Apache-2.0
"""The lambda layer as the paper writes it (Bello 2021, section 3 and Figure 3): four einsums.

Everything else in `lambdanet.ops` computes the same at a lower cost. Letters, as in the paper: b batch, n
query positions, m context positions, h heads (queries that share a lambda), k query and key depth, v value
depth, u intra-depth, r scope of the relative positions.
"""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import PerAxis, per_axis
from lambdanet.ops.content_lambdas import as_boolean, normalized, visible_pairs


def apply_lambdas(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    embeddings: Tensor,
    mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    normalization: str | None = "softmax",
) -> Tensor:
    """Applies the content and position lambdas of every position to its queries.

    Args:
      queries: [b, n, h, k].
      keys: [b, m, k, u], not yet normalized.
      values: [b, m, v, u].
      embeddings: [n, m, k, u], one for each pair of positions; see `gather_embeddings`.
      mask: true or 1 where query n sees context position m, else false or 0, [n, m] or [b, n, m]; None: every
        query sees everything. `InputError` for a floating-point type, unless it has only 0 and 1.
      padding_mask: true or 1 where a context position is no padding, [b, m]; None: everywhere.
      normalization: the normalization of each key channel over the context, as in `content_lambda`.

    Returns:
      [b, n, h, v].
    """
    visible = visible_pairs(
        None if mask is None else as_boolean(mask),
        None if padding_mask is None else as_boolean(padding_mask),
    )
    if visible is not None:
        return _apply_masked_lambdas(
            queries, keys, values, embeddings, visible, normalization
        )
    keys = normalized(keys, normalization, axis=1)  # a softmax over the context
    content_lambda = K.einsum("bmku,bmvu->bkv", keys, values)  # [b, k, v]
    content_output = K.einsum("bnhk,bkv->bnhv", queries, content_lambda)  # [b, n, h, v]
    # [b, n, h, v]
    return content_output + apply_position_lambdas(queries, values, embeddings)


def apply_position_lambdas(
    queries: Tensor, values: Tensor, embeddings: Tensor
) -> Tensor:
    """Applies the position lambdas alone.

    Args:
      queries: [b, n, h, k].
      values: [b, m, v, u].
      embeddings: [n, m, k, u], one for each pair of positions; see `gather_embeddings`.

    Returns:
      [b, n, h, v].
    """
    position_lambdas = K.einsum("nmku,bmvu->bnkv", embeddings, values)  # [b, n, k, v]
    return K.einsum("bnhk,bnkv->bnhv", queries, position_lambdas)  # [b, n, h, v]


def _apply_masked_lambdas(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    embeddings: Tensor,
    visible: Tensor,
    normalization: str | None,
) -> Tensor:
    """Computes a content lambda per query, with keys that are normalized over the context that it sees."""
    visible = visible[..., K.newaxis, K.newaxis]  # [b or 1, n, m, 1, 1]
    unseen = K.dtype_min(keys.dtype) if normalization == "softmax" else 0.0
    keys = K.where(visible, keys[:, K.newaxis], unseen)  # [b, n, m, k, u]
    keys = normalized(keys, normalization, axis=2)
    weights = K.where(visible, keys + embeddings, 0)  # [b, n, m, k, u]
    lambdas = K.einsum("bnmku,bmvu->bnkv", weights, values)  # [b, n, k, v]
    return K.einsum("bnhk,bnkv->bnhv", queries, lambdas)  # [b, n, h, v]


def gather_embeddings(
    table: Tensor,
    query_size: Sequence[int],
    context_size: Sequence[int],
    strides: PerAxis = 1,
    dilation: PerAxis = 1,
    causal_axis: int | None = None,
    chosen: Any = None,
) -> Tensor:
    """Reads the embedding of every pair of positions from a table of relative positions.

    Args:
      table: [r, ..., k, u], one axis of odd length per spatial axis, for the offsets -(r // 2) ... r // 2
        from query to context, in steps of `dilation`; along the causal axis, those up to 0 alone.
      query_size: queries along each axis; query i is at position `strides * i` of the context.
      context_size: context positions along each axis.
      strides: the distance between queries, a number or one per axis.
      dilation: the distance between offsets, a number or one per axis.
      causal_axis: the number of the axis along which a query sees only the positions up to its own.
      chosen: the numbers of some of the flattened queries, which are then those of n; None: all of them.

    Returns:
      [n, m, k, u], zero for pairs out of scope.
    """
    *scope, k, u = table.shape
    # [n, axes], [m, axes]
    queries = K.convert_to_tensor(per_axis(strides, len(scope))) * _positions(
        query_size, chosen
    )
    context = _positions(context_size)
    distances = context - queries[:, K.newaxis]  # [n, m, axes]
    in_scope: Any = True  # [n, m]
    row = 0  # [n, m]
    steps = per_axis(dilation, len(scope))
    for axis, (r, step) in enumerate(zip(scope, steps, strict=True)):
        zero = r - 1 if axis == causal_axis else r // 2  # the row of the offset 0
        offset = distances[..., axis] // step + zero  # from the first row of the table
        in_scope &= (distances[..., axis] % step == 0) & (offset >= 0) & (offset < r)
        row = row * r + offset
    pairs = K.take(K.reshape(table, [-1, k, u]), K.where(in_scope, row, 0), axis=0)
    return K.where(in_scope[..., K.newaxis, K.newaxis], pairs, 0)  # [n, m, k, u]


def causal_mask(
    query_size: Sequence[int],
    context_size: Sequence[int],
    axis: int,
    strides: PerAxis = 1,
    chosen: Any = None,
) -> Tensor:
    """Returns which context positions are not after a query along an axis, booleans [n, m].

    Args:
      query_size, context_size, strides, chosen: as in `gather_embeddings`.
      axis: the number of the spatial axis.
    """
    queries = _positions(query_size, chosen)[:, axis]
    queries *= per_axis(strides, len(query_size))[axis]
    return _positions(context_size)[:, axis] <= queries[:, K.newaxis]


def _positions(size: Sequence[int], chosen: Any = None) -> Tensor:
    """The positions of a map in raster order, or those of some numbers, [n, axes]."""
    positions = K.reshape(
        K.stack(K.meshgrid(*map(K.arange, size), indexing="ij"), axis=-1),
        [-1, len(size)],
    )
    return positions if chosen is None else K.take(positions, chosen, axis=0)
