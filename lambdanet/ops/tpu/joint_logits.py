# SPDX-License-Identifier: Apache-2.0
"""Local attention of several heads whose logits, of keys, relative positions and mask, are one product.

Three arrays have 128 columns, which fill the lanes, for the heads of a tile:

  queries  | the query in the columns of its head, else zero | its logits of the window's rows and columns |
  keys     | the keys of all heads                           | ones for the position's row and column      |
  values   | a one, which adds up the weights                | the values of all heads                     |

Windows of keys and values are extracted together, and each is a selection of columns from them. Outputs are
divided by the sums of weights after the heads are side by side again, and so is the gradient before they are
separated. Of all arrays of [n, m], only the logits are kept for it.

Letters: j blocks of an example, n queries of a block, m context positions of its window, t tiles of h heads
each, c columns of a tile, d the width of all queries, v that of all values, g = b * t * j, r = h * n rows.
"""

import dataclasses
from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import at_least_float32, pad, round_up, sizes
from lambdanet.ops import attention, blocking, local_attention
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
    """Attends in blocks, as `lambdanet.ops.local_attention.attend_by_head`, which serves heads too deep."""
    key_dim, value_dim = (x.shape[-1] // num_heads for x in (keys, values))
    axes, visible = _wide_windows(geometry, queries, keys, tables)
    window = [axis.num_context for axis in axes]
    heads = heads_per_tile(num_heads, key_dim, value_dim, sum(window))
    if heads == 0:
        return local_attention.attend_by_head(
            queries, keys, values, tables, geometry, num_heads
        )
    query_size = sizes(queries)[1:3]
    queries = blocking.split(queries * key_dim**-0.5, axes)
    queries = separate_heads(queries, tables, axes, visible, num_heads, heads)
    context = blocking.extract_windows(
        _tiles(keys, values, num_heads // heads), axes, multiply_windows
    )
    depth = heads * key_dim
    pairs = attention.rows_and_columns(*window, context.dtype)
    pairs = pad(pad(K.transpose(pairs), 1, depth, 0), 1, 0, LANES - depth - sum(window))
    outputs = _attend_in_tiles(queries, context, pairs, depth, heads * value_dim)
    return blocking.merge(outputs, axes, query_size)


def _wide_windows(
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


def heads_per_tile(num_heads: int, key_dim: int, value_dim: int, num_pairs: int) -> int:
    """Returns how many heads fit into a tile, a divisor of their number; 0 if not even one fits.

    Beside the keys are the values, and beside the queries are the logits of `num_pairs` rows and columns.
    """
    divisors = (n for n in range(1, num_heads + 1) if num_heads % n == 0)
    return max(
        (n for n in divisors if n * key_dim + max(n * value_dim, num_pairs) <= LANES),
        default=0,
    )


def separate_heads(
    queries: Tensor,
    tables: Sequence[Tensor],
    axes: Sequence[BlockAxis],
    visible: Sequence[Tensor],
    num_heads: int,
    heads: int,
) -> Tensor:
    """Separates the queries of each head, and appends their logits of rows and columns with the mask.

    All of it is one product with a matrix for each position in a block. Besides the queries, it multiplies
    ones for the row and the column of the block, on which the mask depends.

    Args:
      queries: [b * j, n, d], scaled.
      tables: the tables of the offsets in height and in width, [r, k] each, shared by the heads.
      axes: the queries and the context in height and in width.
      visible: whether a query sees a context position, along each axis: [blocks, queries, context].
      num_heads: the number of heads.
      heads: how many are in a tile.

    Returns:
      [b, t, j, h, n, c].
    """
    dtype = queries.dtype
    matrices = _separating_matrices(tables, axes, visible, num_heads, heads, dtype)
    rows, columns = (sizes(x)[0] for x in visible)
    block = attention.outer_concat(
        K.eye(rows, dtype=dtype), K.eye(columns, dtype=dtype)
    )
    block = K.reshape(
        K.transpose(block, [1, 0, 2]), [columns * rows, 1, rows + columns]
    )
    queries = K.reshape(queries, [-1, columns * rows, *sizes(queries)[1:]])
    block = K.broadcast_to(block, [*sizes(queries)[:3], rows + columns])
    return K.einsum("bjnd,ndthc->btjhnc", K.concatenate([queries, block], -1), matrices)


def _separating_matrices(
    tables: Sequence[Tensor],
    axes: Sequence[BlockAxis],
    visible: Sequence[Tensor],
    num_heads: int,
    heads: int,
    dtype: K.DType,
) -> Tensor:
    """From queries and ones for the block to columns, for each position: [n, d + rows + columns, t, h, c]."""
    (rows, n_rows, height), (columns, n_columns, width) = map(sizes, visible)
    blocks = rows + columns
    n = n_rows * n_columns
    k = tables[0].shape[-1]
    tiles = num_heads // heads
    rest = LANES - heads * k - height - width
    embeddings = K.transpose(attention.map_embeddings(tables, axes), [0, 2, 1])
    identity = K.tile(K.eye(heads * k, dtype=dtype), [tiles, 1])
    identity = K.broadcast_to(identity, [n, *sizes(identity)])
    by_query = K.concatenate([identity, K.tile(embeddings, [1, num_heads, 1])], -1)
    in_rows, in_columns = (
        K.transpose(attention.mask_to_bias(x, dtype), [1, 0, 2]) for x in visible
    )
    bias = attention.outer_concat(
        pad(in_rows, 2, 0, width), pad(in_columns, 2, height, 0)
    )
    by_block = pad(K.reshape(bias, [n, blocks, height + width]), 2, heads * k, 0)
    matrices = pad(K.concatenate([by_query, by_block], 1), 2, 0, rest)[:, :, K.newaxis]
    own_head = K.repeat(K.eye(num_heads, dtype=dtype), k, axis=0)
    own_head = K.concatenate([own_head, K.ones([blocks, num_heads], dtype)], 0)[
        :, :, K.newaxis
    ]
    return K.reshape(
        matrices * own_head, [n, num_heads * k + blocks, tiles, heads, LANES]
    )


def _tiles(keys: Tensor, values: Tensor, tiles: int) -> Tensor:
    """Puts the keys and the values of the heads of a tile side by side: [b * t, height, width, c]."""
    depths = [x.shape[-1] // tiles for x in (keys, values)]

    def tile(number: int) -> Tensor:
        own = [
            x[..., number * n : (number + 1) * n]
            for x, n in zip((keys, values), depths, strict=True)
        ]
        return pad(K.concatenate(own, -1), 3, 0, LANES - sum(depths))

    return attention.split_heads(
        K.concatenate([tile(number) for number in range(tiles)], -1), tiles
    )


def _selections(
    tiles: int, heads: int, depth: int, width: int, dtype: K.DType
) -> tuple[Tensor, Tensor]:
    """Ones from the columns of a head to its values, and from the sum of its weights: [t, h, c, v] each."""
    own_head = K.repeat(K.eye(tiles * heads, dtype=dtype), width // heads, axis=1)
    own_head = K.reshape(own_head, [tiles, heads, 1, tiles * width])
    to_value = pad(
        pad(K.eye(width, dtype=dtype), 0, depth, 0), 0, 0, LANES - depth - width
    )
    to_sum = K.one_hot(0, LANES, dtype=dtype)[:, K.newaxis]
    return K.tile(to_value, [1, tiles]) * own_head, to_sum * own_head


def _attend_in_tiles(
    queries: Tensor, context: Tensor, pairs: Tensor, depth: int, width: int
) -> Tensor:
    """Attends: [b, t, j, h, n, c], [g, m, c] and [m, c] -> [b * j, n, v].

    Args:
      pairs: the ones for rows and columns.
      depth: the columns of keys in a tile.
      width: the columns of values in a tile.
    """
    b, tiles, blocks, heads, n, c = by_tile = sizes(queries)
    v = tiles * width
    dtype = queries.dtype
    to_value, to_sum = _selections(tiles, heads, depth, width, dtype)
    is_key = K.arange(c) < depth
    one = K.one_hot(0, c, dtype=dtype)

    def keys_and_values(context: Tensor) -> tuple[Tensor, Tensor]:
        return K.where(is_key, context, pairs), K.where(is_key, one, context)

    def weigh(logits: Tensor, largest: Tensor) -> Tensor:
        return K.cast(
            K.exp(at_least_float32(logits) - at_least_float32(largest)), dtype
        )

    @K.custom_gradient
    def run(queries: Tensor, context: Tensor) -> tuple[Tensor, K.Gradient]:
        keys, values = keys_and_values(context)
        # [g, r, m]
        logits = attention.clip_to_finite(K.matmul(queries, keys, transpose_b=True))
        largest = K.amax(logits, -1, keepdims=True)
        products = K.reshape(K.matmul(weigh(logits, largest), values), by_tile)
        products = K.einsum(
            "btjhnc,thcv->bjnv", products, K.concatenate([to_value, to_sum], -1)
        )
        sums = products[..., v:]
        outputs = products[..., :v] / sums

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            upstream /= sums
            upstream = K.concatenate([upstream, upstream * outputs], -1)
            places = K.concatenate([to_value, -to_sum], -1)
            # For each example: no copy is needed then.
            places = K.broadcast_to(places, [b, *sizes(places)])
            upstream = K.reshape(
                K.einsum("bjnv,bthcv->btjhnc", upstream, places), sizes(queries)
            )
            keys, values = keys_and_values(context)
            weights = weigh(logits, largest)
            d_logits = weights * K.matmul(upstream, values, transpose_b=True)
            # The transposed products have the long axis m inside, which is faster than transposing [r, m].
            d_keys = K.transpose(
                K.matmul(queries, d_logits, transpose_a=True), [0, 2, 1]
            )
            d_values = K.transpose(
                K.matmul(upstream, weights, transpose_a=True), [0, 2, 1]
            )
            return K.matmul(d_logits, keys), K.where(is_key, d_keys, d_values)

        return outputs, gradient

    outputs = run(K.reshape(queries, [b * tiles * blocks, heads * n, c]), context)
    return K.reshape(outputs, [b * blocks, n, v])
