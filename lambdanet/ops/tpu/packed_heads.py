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

from lambdanet import device
from lambdanet.ops import attention
from lambdanet.tensors import Size, sizes


def most(num_heads: int, depth: int) -> int:
    """Returns how many heads of a depth are best taken together: all, or a part that divides them evenly."""
    fitting = [n for n in range(1, num_heads + 1) if num_heads % n == 0 and n * depth <= device.tiled(depth)]
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

    The first multiplies each query by the embeddings of all e pairs of a row of queries and a row of context,
    or of two columns; what is not of the query's own row and column is then taken out. The second adds, for
    each context position, what is of its row and of its column.

    Args:
      queries: [g, heads * n, heads * k], as from `spread`, over the n = height * width positions of
        `query_size`; g counts the blocks of the map last, as `blocks` numbers them.
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
    embeddings = attention.map_embeddings(tables, query_size, context_size, first_context, strides)
    pairs = tf.concat([tf.reshape(x, [-1, x.shape[-1]]) for x in embeddings], axis=0)  # [e, k]
    along = list(zip(query_size, context_size, strict=True))  # (queries, context positions) of each axis
    over_map = attention.over_map
    seen = over_map(*(tf.reshape(x, [sizes(x)[0], -1]) for x in visible))
    seen = _flat(tf.transpose(seen, [1, 0, 2]))  # [blocks, e]
    own = _flat(over_map(*(tf.repeat(tf.eye(n), m, axis=1) > 0 for n, m in along)))  # [n, e]
    shown = _flat(over_map(*(tf.tile(tf.eye(m, dtype=pairs.dtype), [1, n]) for n, m in along)))  # [m, e]

    logits = tf.einsum("gnk,ek->gne", queries, tf.tile(pairs, [1, heads]))
    g, n, e = sizes(logits)
    by_block = tf.reshape(logits, [-1, sizes(seen)[0], n, e])
    by_block += attention.hidden(seen, logits.dtype)[:, tf.newaxis]
    logits = tf.where(tf.tile(own, [heads, 1]), by_block, tf.zeros([], logits.dtype))
    return tf.einsum("gne,me->gnm", tf.reshape(logits, [g, n, e]), shown)


def _own(heads: int, depth: int, dtype: tf.DType) -> tf.Tensor:
    """Which columns of heads side by side are those of each: [heads, 1, depth]."""
    return tf.expand_dims(tf.repeat(tf.eye(heads, dtype=dtype), depth // heads, axis=1), 1)


def _flat(x: tf.Tensor) -> tf.Tensor:
    """Numbers the places of a map: [height, width, pairs] -> [places, pairs]."""
    height, width, e = sizes(x)
    return tf.reshape(x, [height * width, e])
