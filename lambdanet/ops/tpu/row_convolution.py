# SPDX-License-Identifier: Apache-2.0
"""The position lambda as a convolution along the height, with the columns of a window as channels.

A map is cut into blocks of 4 rows and 8 columns. A relative table, spread over all pairs of a position of a
block and one of its window, is the kernel of a convolution over the blocks of a column: 4 rows of a window
with a scope of 23 are 120 channels, and the 32 positions of 4 keys fill the 128 lanes. Each 4 keys have a
convolution of their own: slices of the lambdas of all keys would be stored once more. The products with the
queries and their sum over the keys are elementwise, in the layout that the convolutions leave.

Letters: g groups of rows, j blocks of columns, t taps of the kernel (groups that the queries of a group see),
c channels (context positions of a group and a window, times u), l lanes (keys, times positions of a block).
"""

import dataclasses

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.device import Device, Speed
from lambdanet.backend.tensors import at_least_float32, ceil_div, pad, round_up, sizes
from lambdanet.ops import products
from lambdanet.ops.blocking import BlockAxis, window_positions
from lambdanet.ops.position_term import Form, Geometry, PositionTerm, Sizes
from lambdanet.ops.relative_positions import PairAxis, expand_table
from lambdanet.ops.tpu import LANES
from lambdanet.ops.tpu.lookups import read_slices

# Of a block.
ROWS = 4
COLUMNS = 8
POSITIONS = ROWS * COLUMNS
KEYS = LANES // POSITIONS  # side by side along the lanes
MIN_IMAGES = 1024  # of one channel; fewer, as in detection, are faster in blocks


@dataclasses.dataclass(frozen=True)
class RowConvolution(Form):
    """Computes the lambdas of blocks of rows and columns by convolutions, with the content."""

    def seconds(self, sizes: Sizes, speed: Speed) -> float:
        """A little less than products with the context first, which it replaces where they are fastest."""
        forms = [form for form in products.candidates(sizes) if not form.query_first]
        return (1 - 1e-9) * min(form.seconds(sizes, speed) for form in forms)

    def apply(self, term: PositionTerm, device: Device) -> Tensor:
        return _apply(term)


def candidates(sizes: Sizes) -> list[Form]:
    """Where many images of one channel on two axes are higher than a window."""
    if sizes.geometry != Geometry() or len(sizes.scope) != 2 or not sizes.known:
        return []
    many = sizes.batch is None or sizes.batch * sizes.v >= MIN_IMAGES
    return (
        [RowConvolution()]
        if many and ROWS * _num_taps(sizes) <= sizes.context_size[0]
        else []
    )


def _apply(term: PositionTerm) -> Tensor:
    """Applies the position lambdas to their queries: [b, height, width, h, v]."""
    b, height, width, h, k = sizes(term.queries)
    v = term.values.shape[-2]
    keys = round_up(k, KEYS)
    groups = ceil_div(height, ROWS)
    blocks = ceil_div(width, COLUMNS)
    images = _images(term, groups, blocks)
    kernel = _kernel(term, keys)
    content = K.zeros([b, k, v], images.dtype) if term.content is None else term.content
    content = K.repeat(
        pad(K.transpose(content, [2, 0, 1]), 2, 0, keys - k), POSITIONS, axis=2
    )
    content = content[:, K.newaxis, K.newaxis]  # [v, 1, 1, b, keys * positions]
    terms = []
    for i, queries in enumerate(_group_queries(term.queries, groups, blocks, keys)):
        tile = slice(i * LANES, (i + 1) * LANES)
        # [b, g, v * j, l]
        lambdas = K.conv(images, kernel[..., tile], 1, "SAME")[:, :groups]
        lambdas = K.reshape(
            K.transpose(lambdas, [1, 2, 0, 3]), [groups, v, blocks, 1, b, LANES]
        )
        # For each head, so that the compiler adds the content where it multiplies, and stores no sums.
        lambdas = (
            K.broadcast_to(lambdas, [groups, v, blocks, h, b, LANES])
            + content[..., tile]
        )
        terms.append(at_least_float32(queries * lambdas))
    outputs = K.cast(K.add_n(terms), term.values.dtype)  # [g, v, j, h, b, l]
    # Adds up the keys of a tile.
    identity = K.tile(K.eye(POSITIONS, dtype=outputs.dtype), [KEYS, 1])
    identity = K.reshape(identity, [LANES, ROWS, COLUMNS])
    # A product: faster than a copy.
    outputs = K.einsum("gvjhbl,lyx->bgyjxhv", outputs, identity)
    return K.reshape(outputs, [b, groups * ROWS, blocks * COLUMNS, h, v])[
        :, :height, :width
    ]


def _num_taps(term: PositionTerm | Sizes) -> int:
    """The taps of the kernel for a term, or for its sizes."""
    return 2 * ceil_div(term.scope[0] // 2, ROWS) + 1


def _columns(term: PositionTerm, blocks: int) -> BlockAxis:
    """The blocks of columns, each with its window."""
    s = term.scope[1]
    return BlockAxis(COLUMNS, COLUMNS + s - 1, -(s // 2), count=blocks, step=COLUMNS)


def _images(term: PositionTerm, groups: int, blocks: int) -> Tensor:
    """Cuts the values into groups of rows and windows of columns: [b, g, v * j, c]."""
    height, width = term.context_size
    groups = max(groups, ceil_div(height, ROWS))
    values = pad(term.values, 1, 0, groups * ROWS - height)
    b, _, _, v, u = sizes(values)
    values = K.reshape(values, [b, groups, ROWS, width, v, u])
    columns = K.one_hot(
        window_positions(_columns(term, blocks), width), width, dtype=values.dtype
    )
    rows = K.eye(ROWS, dtype=values.dtype)
    places = K.einsum("zy,jcx->jzcyx", rows, columns)
    # Where each channel is in the group.
    places = K.reshape(places, [blocks, -1, ROWS, width])
    # A product: faster than slices.
    images = K.einsum("bgyxvu,jcyx->bgvjcu", values, places)
    return K.reshape(images, [b, groups, v * blocks, places.shape[1] * u])


def _kernel(term: PositionTerm, keys: int) -> Tensor:
    """Spreads the table over pairs of positions: [t, 1, c, keys * positions]."""
    taps = _num_taps(term)
    k, u = term.table.shape[2:]
    axes = [PairAxis(ROWS, taps * ROWS, -(taps // 2) * ROWS), _columns(term, 1)]
    channels = ROWS * axes[1].num_context * u
    pairs = expand_table(term.table, axes, read_slices)  # [positions, k, t * c]
    pairs = K.reshape(pairs, [POSITIONS, k, taps, 1, channels])
    pairs = pad(K.transpose(pairs, [2, 3, 4, 1, 0]), 3, 0, keys - k)
    return K.reshape(pairs, [taps, 1, channels, keys * POSITIONS])


def _group_queries(
    queries: Tensor, groups: int, blocks: int, keys: int
) -> list[Tensor]:
    """Cuts queries into blocks, and lays keys and positions along the lanes: tiles [g, 1, j, h, b, l]."""
    b, height, width, h, k = sizes(queries)
    queries = pad(
        pad(queries, 1, 0, groups * ROWS - height), 2, 0, blocks * COLUMNS - width
    )
    queries = K.reshape(
        pad(queries, 4, 0, keys - k), [b, groups, ROWS, blocks, COLUMNS, h, keys]
    )
    tiles = keys // KEYS
    identity = K.reshape(
        K.eye(keys * POSITIONS, dtype=queries.dtype),
        [keys, ROWS, COLUMNS, tiles, LANES],
    )
    queries = K.einsum("bgyjxhk,kyxil->gjhibl", queries, identity)
    return [queries[:, K.newaxis, :, :, i] for i in range(tiles)]
