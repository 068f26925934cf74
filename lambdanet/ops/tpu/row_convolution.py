# SPDX-License-Identifier: Apache-2.0
"""The position lambda as a convolution along the height, with the columns as channels.

A relative table, spread over all pairs of a query's and a context position's column, is the kernel of a
convolution along the other axis: a group of rows side by side has about as many columns as there are lanes,
and gives the lambdas of all its positions for each key. No windows are collected, and the products with the
queries and their sum over the keys are elementwise, in the layout that the convolution leaves.

Letters: g groups of rows, t taps of the kernel (groups that the queries of a group see), l lanes, c channels
(context positions of a group, times u).
"""

from lambdanet import backend as K
from lambdanet.backend.tensors import Size, at_least_float32, ceil_div, pad, product, round_up, sizes
from lambdanet.ops.position_term import PositionTerm
from lambdanet.ops.relative_positions import PairAxis, expand_table
from lambdanet.ops.tpu import LANES
from lambdanet.ops.tpu.table_slices import read_slices

MIN_IMAGES = 1024  # of one channel; fewer, as in detection, are faster in blocks


def is_applicable(term: PositionTerm) -> bool:
    """Whether the term has many images of one channel, on two known axes, higher than a window."""
    b, v = sizes(term.queries)[0], term.values.shape[-2]
    known = all(isinstance(size, int) for size in (*term.query_size, *term.context_size, *term.scope))
    if term.geometry.strides > 1 or term.geometry.dilation > 1 or len(term.scope) != 2 or not known:
        return False
    rows = _rows_per_group(term.query_size[1])
    many = not isinstance(b, int) or b * v >= MIN_IMAGES
    return many and rows * _num_taps(term.scope[0], rows) <= term.context_size[0]


def apply(term: PositionTerm) -> K.Tensor:
    """Applies the position lambdas to their queries: [b, height, width, h, v]."""
    b, height, width, h, k = sizes(term.queries)
    v = term.values.shape[-2]
    rows = _rows_per_group(width)
    taps, groups, size = _num_taps(term.scope[0], rows), ceil_div(height, rows), rows * width
    lanes = round_up(size, LANES)
    channels = _group_channels(term, rows, groups + taps - 1)  # [g + t - 1, c, v, b]
    kernel = _kernel(term, rows, taps)  # [t, c, k, size]
    content = term.content
    if content is not None and round_up(channels.shape[1] + k, LANES) == round_up(channels.shape[1], LANES):
        channels, kernel = _join_content(channels, kernel, content)
        content = None
    lambdas = _convolve(channels, pad(kernel, 3, 0, lanes - size))  # [g, v, b, k * l]
    queries = _group_queries(term.queries, rows, groups, lanes)  # [h, k, g, 1, b, l]
    terms = [
        at_least_float32(queries[:, i] * lambdas[..., i * lanes : (i + 1) * lanes]) for i in range(k)
    ]  # [h, g, v, b, l] each
    outputs = K.cast(K.add_n(terms), term.values.dtype)
    identity = K.eye(lanes, size, dtype=outputs.dtype)
    outputs = K.einsum("hgvbl,lm->bgmhv", outputs, identity)  # a product: faster than a copy
    outputs = K.reshape(outputs, [b, groups * rows, width, h, v])[:, :height]
    return outputs if content is None else outputs + K.einsum("byxhk,bkv->byxhv", term.queries, content)


def _rows_per_group(width: Size) -> int:
    return max(1, LANES // width)


def _num_taps(scope: Size, rows: int) -> int:
    return ceil_div(rows - 1 + scope, rows)


def _group_channels(term, rows, groups):
    """Groups the rows of the values, zeros around them: [groups, c = rows * width * u, v, b]."""
    values = pad(term.values, 1, term.scope[0] // 2, 0)
    values = pad(values, 1, 0, groups * rows - values.shape[1])  # [b, groups * rows, width, v, u]
    _, width, u, v, b = sizes(x := K.transpose(values, [1, 2, 4, 3, 0]))
    return K.reshape(x, [groups, rows * width * u, v, b])


def _group_queries(queries, rows, groups, lanes):
    """Groups the rows of the queries, and lays them along the lanes: [h, k, groups, 1, b, lanes]."""
    _, height, width, h, k = sizes(queries)
    x = K.transpose(pad(queries, 1, 0, groups * rows - height), [3, 4, 1, 2, 0])  # [h, k, height, width, b]
    x = K.transpose(K.reshape(x, [h, k, groups, rows * width, -1]), [0, 1, 2, 4, 3])  # [h, k, g, b, size]
    return pad(x, 4, 0, lanes - rows * width)[:, :, :, K.newaxis]


def _kernel(term, rows, taps):
    """Spreads the table over pairs of positions: [taps, c = rows * width' * u, k, rows * width]."""
    r, _, k, u = term.table.shape
    width, context_width = term.query_size[1], term.context_size[1]
    axes = [PairAxis(rows, taps * rows, -(r // 2)), PairAxis(width, context_width)]
    pairs = expand_table(term.table, axes, read_slices)  # [rows * width, k, t * c]
    pairs = K.reshape(pairs, [rows * width, k, taps, rows * context_width * u])
    return K.transpose(pairs, [2, 3, 1, 0])


def _join_content(channels, kernel, content):
    """Gives each group k more channels that hold the content lambda; the first tap alone reads them."""
    taps, _, k, positions = kernel.shape
    lambdas = K.transpose(content, [1, 2, 0])  # [k, v, b]
    channels = K.concatenate([channels, K.repeat(lambdas[K.newaxis], channels.shape[0], axis=0)], axis=1)
    columns = K.repeat(K.eye(k, dtype=kernel.dtype)[..., K.newaxis], positions, axis=2)
    return channels, K.concatenate([kernel, pad(columns[K.newaxis], 0, 0, taps - 1)], axis=1)


def _convolve(channels, kernel):
    """Convolves along the groups: [g + t - 1, c, v, b] and [t, c, k, l] -> lambdas [g, v, b, k * l]."""
    length, c, v, _ = channels.shape
    taps = kernel.shape[0]
    images = K.reshape(K.transpose(channels, [2, 3, 0, 1]), [-1, length, c])  # [v * b, g + t - 1, c]
    kernel = K.reshape(kernel, [taps, c, product(kernel.shape[2:])])
    lambdas = K.conv(images, kernel, 1, "VALID")  # [v * b, g, k * l]
    return K.reshape(K.transpose(lambdas, [1, 0, 2]), [length - taps + 1, v, -1, kernel.shape[2]])
