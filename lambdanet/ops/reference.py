# SPDX-License-Identifier: Apache-2.0
"""The lambda layer as the paper writes it (Bello 2021, section 3 and Figure 3): four einsums.

Everything else in `lambdanet.ops` computes the same at a lower cost. Letters, as in the paper: b batch, n
query positions, m context positions, h heads (queries that share a lambda), k query and key depth, v value
depth, u intra-depth, r scope of the relative positions.
"""

from collections.abc import Sequence

import tensorflow as tf


def apply_lambdas(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    embeddings: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """Applies the content and position lambdas of every position to its queries.

    Args:
      queries: [b, n, h, k].
      keys: [b, m, k, u], before the softmax.
      values: [b, m, v, u].
      embeddings: [n, m, k, u], one for each pair of positions; see `gather_embeddings`.
      mask: 1 where query n sees context position m, else 0, [n, m]; None: every query sees everything.

    Returns:
      [b, n, h, v].
    """
    if mask is not None:
        return _apply_masked_lambdas(queries, keys, values, embeddings, mask)
    keys = tf.nn.softmax(keys, axis=1)  # over the context
    content_lambda = tf.einsum("bmku,bmvu->bkv", keys, values)  # [b, k, v]
    content_output = tf.einsum("bnhk,bkv->bnhv", queries, content_lambda)  # [b, n, h, v]
    return content_output + apply_position_lambdas(queries, values, embeddings)  # [b, n, h, v]


def apply_position_lambdas(queries: tf.Tensor, values: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
    """Applies the position lambdas alone; shapes as in `apply_lambdas`."""
    position_lambdas = tf.einsum("nmku,bmvu->bnkv", embeddings, values)  # [b, n, k, v]
    return tf.einsum("bnhk,bnkv->bnhv", queries, position_lambdas)  # [b, n, h, v]


def _apply_masked_lambdas(queries, keys, values, embeddings, mask):
    """Gives every query a content lambda of its own, with a softmax over the context that it sees."""
    visible = tf.cast(mask, tf.bool)[..., tf.newaxis, tf.newaxis]  # [n, m, 1, 1]
    keys = tf.nn.softmax(tf.where(visible, keys[:, tf.newaxis], keys.dtype.min), axis=2)  # [b, n, m, k, u]
    weights = tf.where(visible, keys + embeddings, 0)  # [b, n, m, k, u]
    lambdas = tf.einsum("bnmku,bmvu->bnkv", weights, values)  # [b, n, k, v]
    return tf.einsum("bnhk,bnkv->bnhv", queries, lambdas)  # [b, n, h, v]


def gather_embeddings(
    table: tf.Tensor,
    query_size: Sequence[int],
    context_size: Sequence[int],
    strides: int = 1,
    dilation: int = 1,
) -> tf.Tensor:
    """Reads the embedding of every pair of positions from a table of relative positions.

    Args:
      table: [r, ..., k, u], one axis of odd length per spatial axis, for the offsets -(r // 2) ... r // 2
        from query to context, in steps of `dilation`.
      query_size: queries along each axis; query i is at position `strides * i` of the context.
      context_size: context positions along each axis.
      strides: the distance between queries.
      dilation: the distance between offsets.

    Returns:
      [n, m, k, u], zero for pairs out of scope.
    """
    k, u = table.shape[-2:]
    queries, context = strides * _positions(query_size), _positions(context_size)  # [n, axes], [m, axes]
    distances = context - queries[:, tf.newaxis]  # [n, m, axes]
    scope = tf.constant(table.shape[:-2].as_list())
    offsets = distances // dilation + scope // 2  # [n, m, axes], the first row of the table is offset 0
    in_scope = tf.reduce_all((distances % dilation == 0) & (offsets >= 0) & (offsets < scope), axis=-1)
    rows = tf.reduce_sum(offsets * tf.math.cumprod(scope, exclusive=True, reverse=True), axis=-1)  # [n, m]
    table = tf.concat([tf.zeros([1, k, u], table.dtype), tf.reshape(table, [-1, k, u])], axis=0)
    return tf.gather(table, tf.where(in_scope, rows + 1, 0))  # [n, m, k, u]


def _positions(size: Sequence[int]) -> tf.Tensor:
    """The positions of a map in raster order, [n, axes]."""
    return tf.reshape(tf.stack(tf.meshgrid(*map(tf.range, size), indexing="ij"), axis=-1), [-1, len(size)])
