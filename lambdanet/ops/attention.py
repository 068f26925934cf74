# SPDX-License-Identifier: Apache-2.0
"""Softmax attention with relative positions, on groups of queries that share their context.

Letters: g groups (an image and a head; with blocks, also a block), n queries of a group, m context positions
of a group, k query and key depth, v value depth.

All layers with a softmax over the context reduce to `attend`, and differ in what a group is and in the bias.
"""

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from lambdanet import device, tensors
from lambdanet.ops import relative_positions
from lambdanet.tensors import Size, at_least_float32

# Added to the logits of context positions that a query must not see: far below any logit, and finite,
# because it takes part in products with zeros.
_HIDDEN = {tf.float16: -3e4}
_HIDDEN_DEFAULT = -1e30


@tf.custom_gradient
def attend(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns softmax(queries keys^T + bias) values, the softmax over m in float32 or better.

    The gradient of the logits is weights * (d_weights - mean), with the mean of d_weights under the weights.
    That mean is also upstream . outputs, v products a query instead of m, and is subtracted inside the
    product that gives d_weights (on a TPU, whose compiler does that itself, after it). So one array of
    [g, n, m] is kept for the gradient, and read fewer times.

    Args:
      queries: [g, n, k], scaled.
      keys: [g, m, k].
      values: [g, m, v].
      bias: [g, n, m].

    Returns:
      [g, n, v].
    """
    logits = tf.matmul(queries, keys, transpose_b=True) + bias
    if logits.dtype == tf.float16:  # past its range, infinity would give NaN
        logits = tf.minimum(logits, logits.dtype.max)
    weights = tf.cast(tf.nn.softmax(at_least_float32(logits)), values.dtype)
    outputs = tf.matmul(weights, values)

    def gradient(upstream):
        means = tf.reduce_sum(at_least_float32(upstream) * at_least_float32(outputs), -1, keepdims=True)
        means = tf.cast(means, upstream.dtype)
        if device.kind() == "TPU":
            d_weights = tf.matmul(upstream, values, transpose_b=True) - means
        else:
            upstream_and_means = tf.concat([upstream, -means], -1)
            values_and_ones = tf.concat([values, tf.ones_like(values[..., :1])], -1)
            d_weights = tf.matmul(upstream_and_means, values_and_ones, transpose_b=True)
        d_logits = weights * d_weights
        # The transposed products have the long axis m inside, which is faster than transposing [n, m].
        d_values = tf.matmul(upstream, weights, transpose_a=True)  # [g, v, m]
        d_keys = tf.matmul(queries, d_logits, transpose_a=True)  # [g, k, m]
        return tf.matmul(d_logits, keys), _swapped(d_keys), _swapped(d_values), d_logits

    return outputs, gradient


def axis_embeddings(
    table: tf.Tensor, num_queries: Size, num_context: Size, first_context: Size = 0, strides: int = 1
) -> tf.Tensor:
    """Expands a table of the offsets along one axis, [r, k], into one embedding a pair, [n, m, k]."""
    rows = relative_positions.offset_rows(num_queries, num_context, table.shape[0], first_context, strides)
    return relative_positions.read_rows(table[tf.newaxis, :, tf.newaxis], rows)[0, :, 0]  # [n, m, k]


def relative_logits(queries: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
    """Returns each query's products with its own embeddings: [g, n, k], [n, e, k] -> [g, n, e]."""
    by_position = tf.transpose(queries, [1, 0, 2])
    return tf.transpose(tf.matmul(by_position, embeddings, transpose_b=True), [1, 0, 2])


def map_logits(
    queries: tf.Tensor,
    tables: Sequence[tf.Tensor],
    query_size: Sequence[Size],
    context_size: Sequence[Size],
    first_context: Sequence[Size] = (0, 0),
    strides: int = 1,
) -> tf.Tensor:
    """Returns the logits of the rows and of the columns of a map, for `map_bias` to add up.

    Args:
      queries: [g, n, k] over the n = height * width positions of `query_size`.
      tables: for the offsets in height and in width, [r, k] each.
      query_size: height and width of the queries.
      context_size: height and width of the context.
      first_context: row and column of the first context position, in the coordinates of the queries.
      strides: the distance of two queries along each axis.

    Returns:
      [g, n, height + width of the context].
    """
    embeddings = over_map(*map_embeddings(tables, query_size, context_size, first_context, strides))
    height, width, e, k = tensors.sizes(embeddings)
    return relative_logits(queries, tf.reshape(embeddings, [height * width, e, k]))


def map_embeddings(
    tables: Sequence[tf.Tensor],
    query_size: Sequence[Size],
    context_size: Sequence[Size],
    first_context: Sequence[Size] = (0, 0),
    strides: int = 1,
) -> list[tf.Tensor]:
    """Returns the `axis_embeddings` of height and width: [height, rows, k] and [width, columns, k]."""
    of_axis = partial(axis_embeddings, strides=strides)
    return list(map(of_axis, tables, query_size, context_size, first_context))


def over_map(of_rows: tf.Tensor, of_columns: tf.Tensor) -> tf.Tensor:
    """Joins, at each place of a map, what belongs to its row and what belongs to its column.

    Args:
      of_rows: [height, a, ...].
      of_columns: [width, b, ...].

    Returns:
      [height, width, a + b, ...].
    """
    (height, *in_row), (width, *in_column) = tensors.sizes(of_rows), tensors.sizes(of_columns)
    of_rows = tf.broadcast_to(tf.expand_dims(of_rows, 1), [height, width, *in_row])
    of_columns = tf.broadcast_to(tf.expand_dims(of_columns, 0), [height, width, *in_column])
    return tf.concat([of_rows, of_columns], axis=2)


def map_bias(logits: tf.Tensor, context_size: Sequence[Size]) -> tf.Tensor:
    """Adds the logit of its row and of its column for every context position.

    One product with a constant of 0 and 1 does this faster than adding along two broadcast axes, and so does
    its gradient.

    Args:
      logits: [g, n, height + width], as from `map_logits`.
      context_size: height and width of the context.

    Returns:
      [g, n, m = height * width].
    """
    height, width = context_size
    in_row = tf.repeat(tf.eye(height, dtype=logits.dtype), width, axis=1)  # [height, m]
    in_column = tf.tile(tf.eye(width, dtype=logits.dtype), [1, height])  # [width, m]
    g, n, e = tensors.sizes(logits)
    bias = tf.matmul(tf.reshape(logits, [g * n, e]), tf.concat([in_row, in_column], 0))
    return tf.reshape(bias, [g, n, height * width])


def hidden(visible: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns what to add to logits: 0 where `visible`, and where not, what makes their weight zero."""
    return tf.where(visible, tf.zeros([], dtype), tf.cast(_HIDDEN.get(dtype, _HIDDEN_DEFAULT), dtype))


def _swapped(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, 2, 1])
