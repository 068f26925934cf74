# SPDX-License-Identifier: Apache-2.0
"""Local attention of several heads in one product.

Heads stay side by side, as their projection leaves them, up to the number that fits into the lanes. Each
head's queries are zero in the other heads' columns, so one 128-wide product serves all heads; those columns
would be padding otherwise.

Letters as in `lambdanet.ops.attention`, with n queries of a group and a head, and e pairs of a row of
queries and a row of context, or of two columns.
"""

import dataclasses
from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import round_up, sizes
from lambdanet.ops import attention, blocking
from lambdanet.ops.blocking import BlockAxis
from lambdanet.ops.local_attention import LocalGeometry
from lambdanet.ops.tpu import LANES, TILE_ROWS
from lambdanet.ops.tpu.lookups import multiply_windows


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Sequence[Tensor],
    geometry: LocalGeometry,
    num_heads: int,
) -> Tensor:
    """Attends in blocks, as `lambdanet.ops.local_attention.attend_by_head`, several heads together."""
    key_dim, value_dim = (x.shape[-1] // num_heads for x in (keys, values))
    heads = heads_per_tile(num_heads, max(key_dim, value_dim))
    groups = num_heads // heads
    queries, keys, values = (
        attention.split_heads(x, groups) for x in (queries, keys, values)
    )
    queries *= key_dim**-0.5
    query_size = sizes(queries)[1:3]
    axes, visible = wide_windows(geometry, queries, keys, tables)
    queries = pack_queries(blocking.split(queries, axes), heads)
    keys, values = (
        blocking.extract_windows(x, axes, multiply_windows) for x in (keys, values)
    )
    bias = relative_bias(queries, tables, axes, visible, heads)
    outputs = attention.attend(queries, keys, values, bias, fold_means=False)
    outputs = blocking.merge(unpack_outputs(outputs, heads), axes, query_size)
    return attention.merge_heads(outputs, groups)


def heads_per_tile(num_heads: int, depth: int) -> int:
    """Returns how many heads of a depth fit side by side into whole tiles, a divisor of their number."""
    lanes = round_up(depth, LANES)
    return max(
        n for n in range(1, num_heads + 1) if num_heads % n == 0 and n * depth <= lanes
    )


def pack_queries(queries: Tensor, heads: int) -> Tensor:
    """Separates the queries of each head, zero for the others: [g, n, heads k] -> [g, heads n, heads k]."""
    g, n, depth = sizes(queries)
    by_head = K.expand_dims(queries, 1) * head_mask(heads, depth, queries.dtype)
    return K.reshape(by_head, [g, heads * n, depth])


def unpack_outputs(outputs: Tensor, heads: int) -> Tensor:
    """Keeps of each head's outputs its own columns: [g, heads n, heads v] -> [g, n, heads v]."""
    g, n, depth = sizes(outputs)
    by_head = K.reshape(outputs, [g, heads, n // heads, depth])
    return K.sum(by_head * head_mask(heads, depth, outputs.dtype), axis=1)


def relative_bias(
    queries: Tensor,
    tables: Sequence[Tensor],
    axes: Sequence[BlockAxis],
    visible: Sequence[Tensor],
    heads: int = 1,
) -> Tensor:
    """Returns `map_bias` of `map_logits`, masked, by two large products and no transposition.

    The first multiplies each query by the embeddings of all e pairs; those that are not of the query's own
    row and column are then set to zero. The second adds, for each context position, the pair of its row and
    of its column.

    Args:
      queries: [g, heads * n, heads * k], as from `pack_queries`; the blocks of the map vary fastest in g.
      tables: the tables of the offsets in height and in width, [r, k] each, shared by the heads.
      axes: the queries and the context in height and in width.
      visible: whether a query sees a context position, along each axis: [blocks, queries, context].
      heads: how many are side by side.

    Returns:
      [g, heads * n, m = height * width of the context].
    """
    embeddings = map(attention.axis_embeddings, tables, axes)
    # [e, k]
    pairs = K.concatenate([K.reshape(x, [-1, x.shape[-1]]) for x in embeddings], axis=0)
    size = [(axis.num_queries, axis.num_context) for axis in axes]
    outer = attention.outer_concat
    # [blocks y, blocks x, e]
    seen = outer(*(K.reshape(x, [sizes(x)[0], -1]) for x in visible))
    seen = _flat(K.transpose(seen, [1, 0, 2]))  # [blocks, e]
    own = _flat(outer(*(K.repeat(K.eye(n), m, axis=1) > 0 for n, m in size)))  # [n, e]
    # [m, e]
    shown = _flat(
        outer(*(K.tile(K.eye(m, dtype=pairs.dtype), [1, n]) for n, m in size))
    )

    logits = K.einsum("gnk,ek->gne", queries, K.tile(pairs, [1, heads]))
    g, n, e = sizes(logits)
    by_block = K.reshape(logits, [-1, sizes(seen)[0], n, e])
    by_block += attention.mask_to_bias(seen, logits.dtype)[:, K.newaxis]
    logits = K.where(K.tile(own, [heads, 1]), by_block, K.zeros([], logits.dtype))
    return K.einsum("gne,me->gnm", K.reshape(logits, [g, n, e]), shown)


def wide_windows(
    geometry: LocalGeometry,
    queries: Tensor,
    keys: Tensor,
    tables: Sequence[Tensor],
) -> tuple[list[BlockAxis], list[Tensor]]:
    """Returns the axes and what is `visible` along each, with windows widened to full tiles if free.

    They are of whole rows of tiles, where the logits take no more tiles for it. Rows of a window then follow
    each other in memory, and need not be copied together. No query sees what is added.
    """
    views = geometry.views(queries, keys, tables)
    axes = [axis for axis, *_ in views]
    visible = [geometry.visibility(*view) for view in views]
    rows, columns = axes
    in_rows, in_columns = visible
    width = round_up(columns.num_context, TILE_ROWS)
    lanes, wide_lanes = (
        round_up(rows.num_context * n, LANES) for n in (columns.num_context, width)
    )
    if columns.first_context == 0 or wide_lanes > lanes:
        return axes, visible
    in_columns = K.pad(in_columns, [[0, 0], [0, 0], [0, width - columns.num_context]])
    return [rows, dataclasses.replace(columns, num_context=width)], [
        in_rows,
        in_columns,
    ]


def head_mask(heads: int, depth: int, dtype: K.DType) -> Tensor:
    """Ones in the columns of each head, zeros elsewhere: [heads, 1, depth]."""
    return K.expand_dims(K.repeat(K.eye(heads, dtype=dtype), depth // heads, axis=1), 1)


def _flat(x: Tensor) -> Tensor:
    """[height, width, e] -> [height * width, e]."""
    height, width, e = sizes(x)
    return K.reshape(x, [height * width, e])
