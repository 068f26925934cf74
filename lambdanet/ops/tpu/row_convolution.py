# SPDX-License-Identifier: Apache-2.0
"""The position lambda as a convolution along the height whose channels are the columns, as suits a TPU.

A TPU multiplies 128 x 128 matrices. A relative table, spread over all pairs of a query's and a context
position's column, is the kernel of a convolution along the other axis: some rows of a map side by side have
about 128 columns, and give the lambdas of as many positions for each key. No windows are collected, and the
products with the queries and their sum over the keys are elementwise, in the layout that the convolution
leaves. A last product with the identity brings the sums into the layout that is wanted of them, which takes
less time than a copy.
"""

from collections.abc import Sequence

import tensorflow as tf

from lambdanet import device
from lambdanet.ops.relative_positions import expand_table
from lambdanet.tensors import Size, at_least_float32, pad, sizes

LANES = device.DEVICES["TPU"].tile
LEAST = 1024  # images of one channel; fewer, as in detection, take the blocks that were compiled for them


def suits(
    images: Size, query_size: Sequence[Size], context_size: Sequence[Size], scope: Sequence[Size]
) -> bool:
    """Whether this form is for many images of one channel, on two axes, known, and higher than a window."""
    known = all(isinstance(size, int) for size in (*query_size, *context_size, *scope))
    if len(query_size) != 2 or not known or (isinstance(images, int) and images < LEAST):
        return False
    rows, taps = _rows(query_size[1]), _taps(scope[0], _rows(query_size[1]))
    return rows * taps <= context_size[0]


def apply_by_rows(
    queries: tf.Tensor, values: tf.Tensor, table: tf.Tensor, content: tf.Tensor | None = None
) -> tf.Tensor:
    """Applies the position lambdas to their queries, at strides and a dilation of 1.

    Args:
      queries: [b, *query_size, h, k].
      values: [b, *context_size, v, u].
      table: [r, r', k, u].
      content: [b, k, v], to add to the lambdas of all positions.

    Returns:
      [b, *query_size, h, v].
    """
    b, height, width, h, k = sizes(queries)
    v, scope, rows = values.shape[-2], table.shape[0], _rows(width)
    taps, groups = _taps(scope, rows), -(-height // rows)
    kernel = _kernel(table, width, values.shape[2], rows, taps)  # [taps, channels, k, rows * width]
    values = pad(values, 1, scope // 2, 0)
    x = _in_groups(values, rows, groups + taps - 1)  # [groups + taps - 1, channels, v, b]
    joins = content is not None and device.tiled(x.shape[1] + k) == device.tiled(x.shape[1])
    if joins:
        x, kernel = _with_content(x, kernel, content)
    lanes = device.tiled(rows * width)
    kernel = tf.reshape(pad(kernel, 3, 0, lanes - rows * width), [taps, x.shape[1], k * lanes])
    x = tf.reshape(tf.transpose(x, [2, 3, 0, 1]), [-1, groups + taps - 1, x.shape[1]])
    lambdas = tf.nn.conv1d(x, kernel, 1, "VALID")  # [v * b, groups, k * lanes]
    lambdas = tf.reshape(tf.transpose(lambdas, [1, 0, 2]), [groups, v, -1, k * lanes])
    by_key = tf.transpose(pad(queries, 1, 0, groups * rows - height), [3, 4, 1, 2, 0])
    by_key = tf.transpose(tf.reshape(by_key, [h, k, groups, rows * width, -1]), [0, 1, 2, 4, 3])
    by_key = pad(by_key, 4, 0, lanes - rows * width)[:, :, :, tf.newaxis]  # [h, k, groups, 1, b, lanes]
    terms = [at_least_float32(by_key[:, i] * lambdas[..., i * lanes : (i + 1) * lanes]) for i in range(k)]
    outputs = tf.cast(tf.add_n(terms), values.dtype)
    identity = tf.eye(lanes, rows * width, dtype=values.dtype)
    outputs = tf.einsum("hgvbl,lm->bgmhv", outputs, identity)
    outputs = tf.reshape(outputs, [b, groups * rows, width, h, v])[:, :height]
    if content is None or joins:
        return outputs
    return outputs + tf.einsum("byxhk,bkv->byxhv", queries, content)


def _rows(width: int) -> int:
    """How many rows of a map lie side by side in a group."""
    return max(1, LANES // width)


def _taps(scope: int, rows: int) -> int:
    """How many groups of rows the queries of a group see."""
    return -(-(rows - 1 + scope) // rows)


def _kernel(table, width, context_width, rows, taps):
    """Spreads a table [r, r', k, u] over pairs of positions: [taps, rows * width' * u, k, rows * width]."""
    _, _, k, u = table.shape
    first = [-(table.shape[0] // 2), 0]
    pairs = expand_table(table, [rows, width], [taps * rows, context_width], first, by_slices=True)
    pairs = tf.reshape(pairs, [rows * width, k, taps, rows * context_width * u])
    return tf.transpose(pairs, [2, 3, 1, 0])


def _in_groups(values, rows, groups):
    """Groups the rows of values [b, height, width, v, u], zeros after them: [groups, channels, v, b]."""
    values = pad(values, 1, 0, groups * rows - values.shape[1])
    _, width, u, v, b = sizes(x := tf.transpose(values, [1, 2, 4, 3, 0]))
    return tf.reshape(x, [groups, rows * width * u, v, b])


def _with_content(x, kernel, content):
    """Gives each group k more channels that hold the content lambda, of which the first tap takes them."""
    taps, _, k, positions = kernel.shape
    lambdas = tf.transpose(content, [1, 2, 0])  # [k, v, b]
    x = tf.concat([x, tf.repeat(lambdas[tf.newaxis], x.shape[0], axis=0)], axis=1)
    columns = tf.repeat(tf.eye(k, dtype=kernel.dtype)[..., tf.newaxis], positions, axis=2)
    return x, tf.concat([kernel, pad(columns[tf.newaxis], 0, 0, taps - 1)], axis=1)
