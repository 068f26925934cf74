# SPDX-License-Identifier: Apache-2.0
"""Softmax attention with relative positions, on groups of queries that share their context.

Letters: g groups (an image and a head; with blocks, also a block), n queries of a group, m context positions
of a group, k query and key depth, v value depth.

All layers with a softmax over the context use `attend`, and differ in their groups and in the bias.
"""

from collections.abc import Sequence

import tensorflow as tf

from lambdanet import tensors
from lambdanet.ops.relative_positions import PairAxis, read_rows
from lambdanet.tensors import Size, at_least_float32


def attend(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, bias: tf.Tensor, fold_means: bool = True
) -> tf.Tensor:
    """Returns softmax(queries keys^T + bias) values, the softmax over m in float32 or better.

    The gradient of the logits is weights * (d_weights - mean), with the mean of d_weights under the weights.
    That mean is also upstream . outputs, v products per query instead of m. So one array of [g, n, m] is kept
    for the gradient, and read fewer times.

    Args:
      queries: [g, n, k], scaled.
      keys: [g, m, k].
      values: [g, m, v].
      bias: [g, n, m].
      fold_means: whether to subtract the means inside the product that gives d_weights, or after it.

    Returns:
      [g, n, v].
    """

    @tf.custom_gradient
    def run(queries, keys, values, bias):
        logits = tf.matmul(queries, keys, transpose_b=True) + bias
        if logits.dtype == tf.float16:  # past its range, infinity would give NaN
            logits = tf.minimum(logits, logits.dtype.max)
        weights = tf.cast(tf.nn.softmax(at_least_float32(logits)), values.dtype)
        outputs = tf.matmul(weights, values)

        def gradient(upstream):
            means = tf.reduce_sum(at_least_float32(upstream) * at_least_float32(outputs), -1, keepdims=True)
            means = tf.cast(means, upstream.dtype)
            if fold_means:
                upstream_and_means = tf.concat([upstream, -means], -1)
                values_and_ones = tf.concat([values, tf.ones_like(values[..., :1])], -1)
                d_weights = tf.matmul(upstream_and_means, values_and_ones, transpose_b=True)
            else:
                d_weights = tf.matmul(upstream, values, transpose_b=True) - means
            d_logits = weights * d_weights
            # The transposed products have the long axis m inside, which is faster than transposing [n, m].
            d_values = tf.matmul(upstream, weights, transpose_a=True)  # [g, v, m]
            d_keys = tf.matmul(queries, d_logits, transpose_a=True)  # [g, k, m]
            return tf.matmul(d_logits, keys), _transposed(d_keys), _transposed(d_values), d_logits

        return outputs, gradient

    return run(queries, keys, values, bias)


def split_heads(x: tf.Tensor, groups: int) -> tf.Tensor:
    """Makes every head, or group of heads, an example: [b, h, w, groups * c] -> [b * groups, h, w, c]."""
    b, height, width, channels = tensors.sizes(x)
    x = tf.reshape(x, [b, height, width, groups, channels // groups])
    return tf.reshape(tf.transpose(x, [0, 3, 1, 2, 4]), [b * groups, height, width, channels // groups])


def merge_heads(x: tf.Tensor, groups: int) -> tf.Tensor:
    """Puts the heads side by side again, the inverse of `split_heads`."""
    g, height, width, c = tensors.sizes(x)
    x = tf.transpose(tf.reshape(x, [g // groups, groups, height, width, c]), [0, 2, 3, 1, 4])
    return tf.reshape(x, [g // groups, height, width, groups * c])


def axis_embeddings(table: tf.Tensor, axis: PairAxis) -> tf.Tensor:
    """Expands a table of the offsets along one axis, [r, k], into one embedding per pair, [n, m, k]."""
    return read_rows(table[tf.newaxis, :, tf.newaxis], axis)[0, :, 0]


def relative_logits(queries: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
    """Returns each query's products with its own embeddings: [g, n, k], [n, e, k] -> [g, n, e]."""
    by_position = tf.transpose(queries, [1, 0, 2])
    return tf.transpose(tf.matmul(by_position, embeddings, transpose_b=True), [1, 0, 2])


def map_logits(queries: tf.Tensor, tables: Sequence[tf.Tensor], axes: Sequence[PairAxis]) -> tf.Tensor:
    """Returns the logits of the rows and of the columns of a map, for `map_bias` to add up.

    Args:
      queries: [g, n, k] over the n = height * width positions of the axes.
      tables: those of the offsets in height and in width, [r, k] each.
      axes: the queries and the context in height and in width.

    Returns:
      [g, n, height + width of the context].
    """
    embeddings = outer_concat(*map(axis_embeddings, tables, axes))
    height, width, e, k = tensors.sizes(embeddings)
    return relative_logits(queries, tf.reshape(embeddings, [height * width, e, k]))


def outer_concat(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Concatenates, at each position of a map, the entries of its row and of its column.

    The shapes are [height, a, ...], [width, b, ...] -> [height, width, a + b, ...].
    """
    (height, *in_row), (width, *in_column) = tensors.sizes(rows), tensors.sizes(columns)
    rows = tf.broadcast_to(tf.expand_dims(rows, 1), [height, width, *in_row])
    columns = tf.broadcast_to(tf.expand_dims(columns, 0), [height, width, *in_column])
    return tf.concat([rows, columns], axis=2)


def map_bias(logits: tf.Tensor, context_size: Sequence[Size]) -> tf.Tensor:
    """Adds the logits of its row and column for every context position: [g, n, height + width] -> [g, n, m].

    One product with a constant of 0 and 1 does this faster than adding along two broadcast axes, and so does
    its gradient.
    """
    height, width = context_size
    g, n, e = tensors.sizes(logits)
    bias = tf.matmul(tf.reshape(logits, [g * n, e]), _rows_and_columns(height, width, logits.dtype))
    return tf.reshape(bias, [g, n, height * width])


@tensors.precomputed
def _rows_and_columns(height: Size, width: Size, dtype: tf.DType) -> tf.Tensor:
    """1 where a position of a map is in a row or in a column of it, [height + width, m]."""
    in_row = tf.repeat(tf.eye(height, dtype=dtype), width, axis=1)
    in_column = tf.tile(tf.eye(width, dtype=dtype), [1, height])
    return tf.concat([in_row, in_column], 0)


def mask_to_bias(visible: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the bias of a mask: 0 where `visible`, else a value that makes the weight zero.

    It is far below any logit, and finite, because it takes part in products with zeros.
    """
    hidden = -3e4 if dtype == tf.float16 else -1e30
    return tf.where(visible, tf.zeros([], dtype), tf.cast(hidden, dtype))


def _transposed(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, 2, 1])
