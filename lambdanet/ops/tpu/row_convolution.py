# SPDX-License-Identifier: Apache-2.0
"""The position lambda as a convolution along the height, with the columns of a window as channels.

A map is cut into blocks of 4 rows and 8 columns. A relative table, spread over all pairs of a position of a
block and one of its window, is the kernel of a convolution over the blocks of a column: 4 rows of a window
with a scope of 23 are 120 channels, and the 32 positions of 4 keys fill the 128 lanes. The products with the
queries and their sum over the keys are elementwise, in the layout that the convolution leaves.

Letters: g groups of rows, j blocks of columns, t taps of the kernel (groups that the queries of a group see),
c channels (context positions of a group and a window, times u), l lanes (keys, times positions of a block).
"""

from lambdanet import backend as K
from lambdanet.backend.device import Device
from lambdanet.backend.tensors import Size, at_least_float32, ceil_div, pad, round_up, sizes
from lambdanet.ops import cost_model
from lambdanet.ops.position_term import Geometry, PositionTerm
from lambdanet.ops.relative_positions import PairAxis, expand_table
from lambdanet.ops.tpu import LANES
from lambdanet.ops.tpu.table_slices import read_slices

ROWS, COLUMNS = 4, 8  # of a block
POSITIONS = ROWS * COLUMNS
KEYS = LANES // POSITIONS  # side by side along the lanes
MIN_IMAGES = 1024  # of one channel; fewer, as in detection, are faster in blocks


def is_applicable(term: PositionTerm, device: Device) -> bool:
    """Whether the context is first, in many images of one channel on two axes, higher than a window."""
    b, v = sizes(term.queries)[0], term.values.shape[-2]
    known = all(isinstance(size, int) for size in (*term.query_size, *term.context_size, *term.scope))
    if term.geometry != Geometry() or len(term.scope) != 2 or not known:
        return False
    if cost_model.choose(cost_model.ProblemSize.of(term), device).query_first:
        return False
    many = not isinstance(b, int) or b * v >= MIN_IMAGES
    return many and ROWS * _num_taps(term) <= term.context_size[0]


def apply(term: PositionTerm) -> K.Tensor:
    """Applies the position lambdas to their queries: [b, height, width, h, v]."""
    b, height, width, h, k = sizes(term.queries)
    v, keys = term.values.shape[-2], round_up(k, KEYS)
    groups, blocks = ceil_div(height, ROWS), ceil_div(width, COLUMNS)
    lambdas = K.conv(_images(term, groups, blocks), _kernel(term, keys), 1, "VALID")  # [j * v * b, g, l]
    lambdas = K.reshape(lambdas, [blocks, v, b, groups, keys * POSITIONS])
    lambdas = K.transpose(lambdas, [3, 0, 1, 2, 4])  # [g, j, v, b, l]
    content = K.zeros([b, k, v], lambdas.dtype) if term.content is None else term.content
    content = K.repeat(pad(K.transpose(content, [2, 0, 1]), 2, 0, keys - k), POSITIONS, axis=2)  # [v, b, l]
    queries = _group_queries(term.queries, groups, blocks, keys)  # [h, g, j, 1, b, l]
    tiles = [slice(i, i + LANES) for i in range(0, keys * POSITIONS, LANES)]
    terms = [at_least_float32(queries[..., x] * (lambdas[..., x] + content[..., x])) for x in tiles]
    outputs = K.cast(K.add_n(terms), term.values.dtype)  # [h, g, j, v, b, LANES]
    identity = K.tile(K.eye(POSITIONS, dtype=outputs.dtype), [KEYS, 1])  # adds up the keys of a tile
    identity = K.reshape(identity, [LANES, ROWS, COLUMNS])
    outputs = K.einsum("hgjvbl,lyx->bgyjxhv", outputs, identity)  # a product: faster than a copy
    outputs = K.reshape(outputs, [b, groups * ROWS, blocks * COLUMNS, h, v])
    return outputs[:, :height, :width]


def _num_taps(term: PositionTerm) -> Size:
    return ceil_div(ROWS - 1 + term.scope[0], ROWS)


def _images(term, groups, blocks):
    """Cuts the values into windows and groups of rows, zeros around them: [j * v * b, g + t - 1, c]."""
    (height, width), (r, s) = term.context_size, term.scope
    groups, window = groups + _num_taps(term) - 1, COLUMNS + s - 1
    values = pad(term.values, 1, r // 2, groups * ROWS - height - r // 2)
    values = pad(values, 2, s // 2, blocks * COLUMNS + s - 1 - width - s // 2)
    values = K.transpose(values, [1, 2, 4, 3, 0])  # [rows, columns, u, v, b]
    windows = [values[:, COLUMNS * i : COLUMNS * i + window] for i in range(blocks)]
    _, _, _, u, v, b = sizes(windows := K.stack(windows))
    windows = K.reshape(windows, [blocks, groups, ROWS * window * u, v, b])
    return K.reshape(K.transpose(windows, [0, 3, 4, 1, 2]), [blocks * v * b, groups, ROWS * window * u])


def _kernel(term, keys):
    """Spreads the table over pairs of positions: [t, c, l]."""
    (r, s), taps, (k, u) = term.scope, _num_taps(term), term.table.shape[2:]
    window = COLUMNS + s - 1
    axes = [PairAxis(ROWS, taps * ROWS, -(r // 2)), PairAxis(COLUMNS, window, -(s // 2))]
    pairs = expand_table(term.table, axes, read_slices)  # [positions, k, t * c]
    pairs = K.reshape(pairs, [POSITIONS, k, taps, ROWS * window * u])
    pairs = pad(K.transpose(pairs, [2, 3, 1, 0]), 2, 0, keys - k)  # [t, c, keys, positions]
    return K.reshape(pairs, [taps, ROWS * window * u, keys * POSITIONS])


def _group_queries(queries, groups, blocks, keys):
    """Cuts the queries into blocks, and lays keys and positions along the lanes: [h, g, j, 1, b, l]."""
    b, height, width, h, k = sizes(queries)
    queries = pad(pad(queries, 1, 0, groups * ROWS - height), 2, 0, blocks * COLUMNS - width)
    queries = K.reshape(pad(queries, 4, 0, keys - k), [b, groups, ROWS, blocks, COLUMNS, h, keys])
    identity = K.reshape(
        K.eye(keys * POSITIONS, dtype=queries.dtype), [keys, ROWS, COLUMNS, keys * POSITIONS]
    )
    return K.einsum("bgyjxhk,kyxl->hgjbl", queries, identity)[:, :, :, K.newaxis]
