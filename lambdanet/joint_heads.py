# SPDX-License-Identifier: Apache-2.0
"""Attention of several heads in one product, as suits a TPU.

A TPU keeps arrays in tiles of 8 x 128 numbers and multiplies 128 x 128 matrices. Keys of depth 16 fill an
eighth of a tile, and of what is read and written when they are collected into windows, seven eighths are
padding. So heads stay side by side, as their projection leaves them, as many as fit into 128 columns, and
each of them asks with queries that are zero in the columns of the others. The zeros fill what of the matrix
unit would stay empty.

Letters: g groups, n queries of a group and a head, m context positions of a group, k query and key depth, v
value depth.
"""

from collections.abc import Sequence

import tensorflow as tf

from lambdanet import attention_ops, cost
from lambdanet.position import Size, product, sizes


def most(num_heads: int, depth: int) -> int:
    """Returns how many heads of a depth are best taken together: all, or a part that divides them evenly."""
    fitting = [n for n in range(1, num_heads + 1) if num_heads % n == 0 and n * depth <= cost.tiled(depth)]
    return max(fitting)


def spread(queries: tf.Tensor, heads: int) -> tf.Tensor:
    """Gives each head queries of its own: [g, n, heads k] -> [g, heads n, heads k], zero for the others."""
    g, n, depth = sizes(queries)
    by_head = tf.expand_dims(queries, 1) * _own(heads, depth, queries.dtype)
    return tf.reshape(by_head, [g, heads * n, depth])


def collect(outputs: tf.Tensor, heads: int) -> tf.Tensor:
    """Takes of each head's outputs its own columns: [g, heads n, heads v] -> [g, n, heads v]."""
    g, n, depth = sizes(outputs)
    by_head = tf.reshape(outputs, [g, heads, n // heads, depth])
    return tf.reduce_sum(by_head * _own(heads, depth, outputs.dtype), axis=1)


def bias(
    queries: tf.Tensor,
    tables: Sequence[tf.Tensor],
    query_size: Sequence[Size],
    context_size: Sequence[Size],
    visible: Sequence[tf.Tensor],
    first_context: Sequence[Size] = (0, 0),
    strides: int = 1,
    heads: int = 1,
) -> tf.Tensor:
    """What `attention_ops.map_logits` and `map_bias` give, by two large products and no transposition.

    The first multiplies each query by the embeddings for all rows and all columns, also by those for queries
    in another row or column, which are then taken out; the second adds up what belongs to a context position.

    Args:
      queries: [g, heads * n, heads * k], as from `spread`, over the n = height * width positions of
        `query_size`; g counts the blocks of the map last.
      tables: for the offsets in height and in width, [r, k] each, shared by the heads.
      query_size: height and width of the queries.
      context_size: height and width of the context.
      visible: whether a query sees a context position, along each axis: [blocks, queries, context].
      first_context: row and column of the first context position, in the coordinates of the queries.
      strides: the distance of two queries along each axis.
      heads: how many lie side by side.

    Returns:
      [g, heads * n, m = height * width of the context].
    """
    embeddings = [
        attention_ops.axis_embeddings(table, n, m, first, strides)
        for table, n, m, first in zip(tables, query_size, context_size, first_context, strict=True)
    ]
    pairs = tf.concat([tf.reshape(x, [-1, x.shape[-1]]) for x in embeddings], axis=0)  # [e, k]
    logits = tf.einsum("gnk,ek->gne", queries, tf.tile(pairs, [1, heads]))
    (g, n, e), blocks = sizes(logits), [sizes(x)[0] for x in visible]
    axes = range(2)
    hidden = [attention_ops.hidden(tf.reshape(visible[i], [blocks[i], -1]), logits.dtype) for i in axes]
    hidden = tf.concat([_along(x, axis, blocks) for axis, x in enumerate(hidden)], axis=-1)
    logits = tf.reshape(logits, [-1, product(blocks), n, e]) + tf.reshape(hidden, [product(blocks), 1, e])
    own = [tf.repeat(tf.eye(query_size[i]), context_size[i], axis=1) > 0 for i in axes]  # [height, pairs]
    own = tf.concat([_along(x, axis, query_size) for axis, x in enumerate(own)], axis=-1)
    own = tf.tile(tf.reshape(own, [-1, e]), [heads, 1])  # [heads n, e]
    logits = tf.reshape(tf.where(own, logits, tf.zeros([], logits.dtype)), [g, n, e])
    places = [tf.tile(tf.eye(context_size[i], dtype=logits.dtype), [query_size[i], 1]) for i in axes]
    height, width = context_size
    shown = tf.concat([tf.repeat(places[0], width, axis=1), tf.tile(places[1], [1, height])], axis=0)
    return tf.einsum("gne,em->gnm", logits, shown)


def _own(heads: int, depth: int, dtype: tf.DType) -> tf.Tensor:
    """Which columns of heads side by side are those of each: [heads, 1, depth]."""
    return tf.expand_dims(tf.repeat(tf.eye(heads, dtype=dtype), depth // heads, axis=1), 1)


def _along(x: tf.Tensor, axis: int, size: Sequence[Size]) -> tf.Tensor:
    """Repeats what holds along one axis of a map over the other: [size[axis], e] -> [*size, e]."""
    return tf.broadcast_to(tf.expand_dims(x, 1 - axis), [*size, sizes(x)[-1]])
