# SPDX-License-Identifier: Apache-2.0
"""Softmax attention with relative positions, on groups of queries that share their context.

Letters: g groups (an image and a head; with blocks, also a block), n queries of a group, m context positions
of a group, k query and key depth, v value depth.

All layers with a softmax over the context use `attend`, and differ in their groups and in the bias.
"""

import dataclasses
from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor, tensors
from lambdanet.backend.tensors import Size, at_least_float32
from lambdanet.ops.relative_positions import PairAxis, read_rows


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    fold_means: bool = True,
) -> Tensor:
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

    @K.custom_gradient
    def run(
        queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor
    ) -> tuple[Tensor, K.Gradient]:
        logits = clip_to_finite(K.matmul(queries, keys, transpose_b=True) + bias)
        weights = K.cast(K.softmax(at_least_float32(logits)), values.dtype)
        outputs = K.matmul(weights, values)

        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            means = K.sum(
                at_least_float32(upstream) * at_least_float32(outputs),
                -1,
                keepdims=True,
            )
            means = K.cast(means, upstream.dtype)
            if fold_means:
                upstream_and_means = K.concatenate([upstream, -means], -1)
                values_and_ones = K.concatenate(
                    [values, K.ones_like(values[..., :1])], -1
                )
                d_weights = K.matmul(
                    upstream_and_means, values_and_ones, transpose_b=True
                )
            else:
                d_weights = K.matmul(upstream, values, transpose_b=True) - means
            d_logits = weights * d_weights
            # The transposed products have the long axis m inside, which is faster than transposing [n, m].
            d_values = K.matmul(upstream, weights, transpose_a=True)  # [g, v, m]
            d_keys = K.matmul(queries, d_logits, transpose_a=True)  # [g, k, m]
            return (
                K.matmul(d_logits, keys),
                _transposed(d_keys),
                _transposed(d_values),
                d_logits,
            )

        return outputs, gradient

    return run(queries, keys, values, bias)


def clip_to_finite(logits: Tensor) -> Tensor:
    """Returns logits that are finite in float16, past the range of which a softmax would give NaN."""
    if K.dtype_name(logits.dtype) == "float16":
        return K.minimum(logits, K.dtype_max(logits.dtype))
    return logits


def split_heads(x: Tensor, groups: int) -> Tensor:
    """Makes every head, or group of heads, an example: [b, h, w, groups * c] -> [b * groups, h, w, c]."""
    b, height, width, channels = tensors.sizes(x)
    x = K.reshape(x, [b, height * width, groups, channels // groups])
    return K.reshape(
        K.transpose(x, [0, 2, 1, 3]), [b * groups, height, width, channels // groups]
    )


def merge_heads(x: Tensor, groups: int) -> Tensor:
    """Puts the heads side by side again, the inverse of `split_heads`."""
    g, height, width, c = tensors.sizes(x)
    x = K.transpose(
        K.reshape(x, [g // groups, groups, height * width, c]), [0, 2, 1, 3]
    )
    return K.reshape(x, [g // groups, height, width, groups * c])


@tensors.constant_folding
def axis_embeddings(table: Tensor, axis: PairAxis) -> Tensor:
    """Expands a table of the offsets along one axis, [r, k], into one embedding per pair, [n, m, k]."""
    return read_rows(table[K.newaxis, :, K.newaxis], axis)[0, :, 0]


def relative_logits(queries: Tensor, embeddings: Tensor) -> Tensor:
    """Returns each query's products with its own embeddings: [g, n, k], [n, e, k] -> [g, n, e]."""
    by_position = K.transpose(queries, [1, 0, 2])
    return K.transpose(K.matmul(by_position, embeddings, transpose_b=True), [1, 0, 2])


def map_logits(
    queries: Tensor, tables: Sequence[Tensor], axes: Sequence[PairAxis]
) -> Tensor:
    """Returns the logits of the rows and of the columns of a map, for `map_bias` to add up.

    Args:
      queries: [g, n, k] over the n = height * width positions of the axes.
      tables: the tables of the offsets in height and in width, [r, k] each.
      axes: the queries and the context in height and in width.

    Returns:
      [g, n, height + width of the context].
    """
    return relative_logits(queries, map_embeddings(tables, axes))


def map_embeddings(tables: Sequence[Tensor], axes: Sequence[PairAxis]) -> Tensor:
    """Returns the embeddings of a map's rows and columns for each query: [n, height + width, k]."""
    embeddings = outer_concat(*map(axis_embeddings, tables, axes))
    height, width, e, k = tensors.sizes(embeddings)
    return K.reshape(embeddings, [height * width, e, k])


@tensors.constant_folding
def outer_concat(rows: Tensor, columns: Tensor) -> Tensor:
    """Concatenates, at each position of a map, the entries of its row and of its column.

    The shapes are [height, a, ...], [width, b, ...] -> [height, width, a + b, ...].
    """
    height, *in_row = tensors.sizes(rows)
    width, *in_column = tensors.sizes(columns)
    rows = K.broadcast_to(K.expand_dims(rows, 1), [height, width, *in_row])
    columns = K.broadcast_to(K.expand_dims(columns, 0), [height, width, *in_column])
    return K.concatenate([rows, columns], axis=2)


def map_bias(logits: Tensor, context_size: Sequence[Size]) -> Tensor:
    """Adds the logits of its row and column for every context position: [g, n, height + width] -> [g, n, m].

    One product with a constant of 0 and 1 does this faster than adding along two broadcast axes, and so does
    its gradient.
    """
    height, width = context_size
    g, n, e = tensors.sizes(logits)
    bias = K.matmul(
        K.reshape(logits, [g * n, e]), rows_and_columns(height, width, logits.dtype)
    )
    return K.reshape(bias, [g, n, height * width])


@tensors.cache_by_size
def rows_and_columns(height: Size, width: Size, dtype: K.DType) -> Tensor:
    """1 where a position of a map is in a row or in a column of it, [height + width, m]."""
    in_row = K.repeat(K.eye(height, dtype=dtype), width, axis=1)
    in_column = K.tile(K.eye(width, dtype=dtype), [1, height])
    return K.concatenate([in_row, in_column], 0)


@dataclasses.dataclass(frozen=True)
class ChosenAxis:
    """What some queries see along one axis of a map, which may have padding around it.

    Attributes:
      rows: the row of a table of offsets for each query and context position, [c, context].
      visible: whether a query sees a context position, [c, context].
      size: the positions of the map.
      padding: the context positions before those of the map.
    """

    rows: Tensor
    visible: Tensor
    size: int
    padding: int


def chosen_weights(
    queries: Tensor,
    keys: Tensor,
    tables: Sequence[Tensor],
    axes: Sequence[ChosenAxis],
) -> Tensor:
    """Returns the weights of softmax attention for some queries alone.

    Args:
      queries: [b, heads, c, k], scaled.
      keys: [b, heads, height, width, k], of the map.
      tables: the tables of the offsets in height and in width, [r, k] each.
      axes: what the queries see in height and in width, of the map and the zeros around it.

    Returns:
      [b, heads, c, height * width], in float32 or better. Zeros around the map, if they are visible, have the
      rest of the sum of 1.
    """
    queries = at_least_float32(queries)
    b, heads, c, k = tensors.sizes(queries)
    around = []
    for axis in axes:
        after = tensors.sizes(axis.visible)[1] - axis.size - axis.padding
        around.append([axis.padding, after])
    keys = K.pad(at_least_float32(keys), [[0, 0], [0, 0], *around, [0, 0]])
    height, width = tensors.sizes(keys)[2:4]
    keys = K.reshape(keys, [b, heads, height * width, k])
    logits = K.matmul(queries, keys, transpose_b=True)
    logits = K.reshape(logits, [b, heads, c, height, width])
    for number, (axis, table) in enumerate(zip(axes, tables, strict=True)):
        table = K.cast(K.convert_to_tensor(table), logits.dtype)
        embeddings = K.take(table, axis.rows, axis=0)  # [c, context, k]
        bias = K.einsum("bhck,cak->bhca", queries, embeddings)
        logits += K.expand_dims(bias, 4 - number)
    first, second = (axis.visible for axis in axes)
    visible = first[:, :, K.newaxis] & second[:, K.newaxis]
    logits += mask_to_bias(visible, logits.dtype)
    weights = K.softmax(K.reshape(logits, [b, heads, c, height * width]))
    weights = K.reshape(weights, [b, heads, c, height, width])
    on_map = [slice(axis.padding, axis.padding + axis.size) for axis in axes]
    return K.reshape(weights[(..., *on_map)], [b, heads, c, -1])


def mask_to_bias(
    visible: Tensor, dtype: K.DType, hidden: float | None = None
) -> Tensor:
    """Returns the bias of a mask: 0 where `visible`, else a value that makes the weight zero.

    That is `hidden`, or else far below any logit, and finite, because it takes part in products with zeros.
    """
    if hidden is None:
        hidden = -3e4 if K.dtype_name(dtype) == "float16" else -1e30
    return K.where(visible, K.zeros([], dtype), K.cast(hidden, dtype))


def _transposed(x: Tensor) -> Tensor:
    return K.transpose(x, [0, 2, 1])
