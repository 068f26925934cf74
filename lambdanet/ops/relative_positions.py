# SPDX-License-Identifier: Apache-2.0
"""Relative position embeddings: from the small table of offsets to one embedding per pair of positions.

A relative table has one row per offset `m - n` between a context position m and a query position n, so
that interactions are translation equivariant (Bello 2021, section 3.3). Along an axis of length r it holds
the offsets -(r // 2) ... r // 2; beyond them the embedding is zero (section 3.4).
"""

from collections.abc import Sequence

import tensorflow as tf

from lambdanet import tensors

_LARGEST_ONE_HOT = 2**22


def offset_rows(
    num_queries: tensors.Size,
    num_context: tensors.Size,
    r: tensors.Size,
    first_context: tensors.Size = 0,
    strides: int = 1,
    dilation: int = 1,
    window: int = 1,
) -> tf.Tensor:
    """Says which row of a relative table each pair of positions along one axis uses.

    Args:
      num_queries: how many queries; query i stands at position `strides * i`.
      num_context: how many context positions; the first stands at `first_context`.
      r: the odd length of the table, for offsets of -(r // 2) ... r // 2 steps of `dilation`.
      first_context: the first context position, in the coordinates of the queries.
      strides: the distance of two queries.
      dilation: the distance of two offsets; positions between them have the embedding zero.
      window: how many positions each query stands for, its own and those after it.

    Returns:
      Numbers of rows [num_queries * window, num_context]; -1 where a pair is out of scope.
    """
    context = first_context + tf.range(num_context)
    places = tf.reshape(strides * tf.range(num_queries)[:, tf.newaxis] + tf.range(window), [-1])
    offsets = context[tf.newaxis] - places[:, tf.newaxis]
    rows = offsets // dilation + r // 2
    return tf.where((offsets % dilation == 0) & (rows >= 0) & (rows < r), rows, -1)


def expand_table(
    table: tf.Tensor,
    query_size: Sequence[tensors.Size],
    context_size: Sequence[tensors.Size],
    first_context: Sequence[tensors.Size] | None = None,
    strides: int = 1,
    dilation: int = 1,
    window: int = 1,
    by_slices: bool = False,
) -> tf.Tensor:
    """Expands a relative table into embeddings for every pair of query and context positions.

    Args:
      table: [r, ..., k] or [r, ..., k, u], one axis of offsets per spatial axis.
      query_size: the number of query positions along each spatial axis.
      context_size: the same for the context.
      first_context: the first context position along each axis, in the coordinates of the queries;
        default: 0.
      strides: the distance of two queries along every axis.
      dilation: the distance of two offsets along every axis.
      window: how many positions along every axis a query stands for, its own and those after it.
      by_slices: read the first of several axes, of known sizes, as slices along the lanes of a TPU.

    Returns:
      [n, k, m] (or [n, k, m * u]): n and m run over the flattened query and context positions, and k over
      the positions of the window and the depth.
    """
    rank = len(query_size)
    *scopes, depth, intra_depth = [*tensors.sizes(table), 1][: rank + 2]
    first_context = first_context or [0] * rank
    # From the last axis to the first: [..., r, p, q] -> [..., n p, m q], where p ends in k and q in u.
    p, q = depth, intra_depth
    for axis in reversed(range(rank)):
        n, m, r = query_size[axis], context_size[axis], scopes[axis]
        table = tf.reshape(table, [tensors.product(scopes[:axis]), r, p, q])
        known = all(isinstance(size, int) for size in (n, m, r, first_context[axis]))
        if by_slices and axis == 0 and rank > 1 and known and dilation == 1:
            places = [strides * i + o - first_context[0] for i in range(n) for o in range(window)]
            table = slide(table[0], places, m)
        else:
            rows = offset_rows(n, m, r, first_context[axis], strides, dilation, window)
            table = read_rows(table, rows)
        p, q = n * window * p, m * q
    if window > 1:
        table = tf.reshape(table, [part for n in query_size for part in (n, window)] + [depth, q])
        table = tf.transpose(table, [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank, 2 * rank + 1])
    return tf.reshape(table, [tensors.product(query_size), window**rank * depth, q])


def read_rows(table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Reads rows of a table by number, zeros for -1: [b, r, p, q] and [n, m] -> [b, n, p, m, q].

    By a product with one-hot rows, whose gradient is another product: many times faster than a gather, whose
    gradient is a scatter-add. For long axes, where the one-hot rows would be large, by a gather all the same.
    """
    (n, m), r = tensors.sizes(rows), tensors.sizes(table)[1]
    if all(isinstance(size, int) for size in (n, m, r)) and n * m * r <= _LARGEST_ONE_HOT:
        return tf.einsum("nmr,brpq->bnpmq", tf.one_hot(rows, r, dtype=table.dtype), table)
    padded = tf.pad(table, [[0, 0], [1, 0], [0, 0], [0, 0]])
    return tf.transpose(tf.gather(padded, rows + 1, axis=1), [0, 1, 3, 2, 4])


def slide(table: tf.Tensor, places: Sequence[int], num_context: int) -> tf.Tensor:
    """Reads the rows of a table that queries at these places use for the context positions from 0 on.

    Neighbouring context positions use neighbouring rows, so with the rows of the table laid side by side,
    those of a query are one slice.

    Args:
      table: [r, p, q], for the offsets -(r // 2) ... r // 2.
      places: of the queries.
      num_context: m.

    Returns:
      [n, p, m, q].
    """
    r, p, q = tensors.sizes(table)
    before, after = max(*places, r // 2) - r // 2, max(num_context - 1 - min(places) - r // 2, 0)
    table = tf.pad(tf.transpose(table, [1, 0, 2]), [[0, 0], [before, after], [0, 0]])
    table = tf.reshape(table, [p, (before + r + after) * q])
    starts = [(before + r // 2 - place) * q for place in places]
    slices = [table[:, start : start + num_context * q] for start in starts]
    return tf.reshape(tf.stack(slices), [len(places), p, num_context, q])


def causal(table: tf.Tensor, rank: int) -> tf.Tensor:
    """Zeroes the embeddings of context positions after the query, in raster order over `rank` axes.

    Whether a position is after the query depends on the offset alone, so masking the small table is
    enough, and every implementation of the position lambda stays open.
    """
    before = [[0]]
    for r in table.shape[:rank]:
        before = [[*row, offset] for row in before for offset in range(-(r // 2), r // 2 + 1)]
    mask = tf.cast([row[1:] <= [0] * rank for row in before], table.dtype)
    return table * tf.reshape(mask, [*table.shape[:rank]] + [1] * (table.shape.rank - rank))


def resize_table(table: tf.Tensor, lengths: Sequence[tensors.Size]) -> tf.Tensor:
    """Interpolates a table linearly to other odd lengths, keeping offset 0 and both ends in place.

    Args:
      table: [r, ..., k] or [r, ..., k, u].
      lengths: the new length along each axis of offsets.
    """
    rank = len(lengths)
    for length, r in zip(lengths, table.shape.as_list(), strict=False):
        step = (r - 1) / tf.cast(tf.maximum(length - 1, 1), tf.float32)
        places = tf.range(length, dtype=tf.float32) * step
        distances = tf.abs(places[:, tf.newaxis] - tf.range(r, dtype=tf.float32))
        weights = tf.cast(tf.maximum(1.0 - distances, 0.0), table.dtype)  # [length, r]
        table = tf.tensordot(table, weights, [[0], [1]])  # the new axis comes last
    depth_axes = list(range(table.shape.rank - rank))
    return tf.transpose(table, [axis + len(depth_axes) for axis in range(rank)] + depth_axes)
