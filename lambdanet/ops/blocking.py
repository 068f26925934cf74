# SPDX-License-Identifier: Apache-2.0
"""Cutting a map into blocks of queries, each with the window of context around it.

Blocks are numbered with the first axis varying fastest, [b * counts of the last axis, ..., of the first],
which is the order that one-hot products yield on a TPU.

An example along one axis: 5 positions, a scope of 3 and blocks of 2 queries. There are 3 blocks, each with
a window of 1 + 2 + 1 = 4 context positions. A window begins one position before its block
(`first_context=-1`), and two after the window before it (`step=2`):

    block       0            1            2
    queries     0  1         2  3         4  .     (. is padded by `split`, and cut off by `merge`)
    window      .  0  1  2   1  2  3  4   3  4  .  .   (`window_positions`; . is -1, outside of the map)
    place       0  1  2  3   4  5  6  7   8  9 10 11   (in all windows, side by side)

Each query sees 3 neighboring places of the window: query 2 those of the positions 1, 2 and 3. Position 3 is
in two windows, at the places 6 and 8, so that its gradient is the sum of theirs (`_places_in_windows`, which
begins with the last window: [8, 6]; for position 0, in one window, [1, -1]).
"""

import dataclasses
from collections.abc import Callable, Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor, tensors
from lambdanet.backend.tensors import Size, ceil_div, product, sizes
from lambdanet.ops.relative_positions import PairAxis


@dataclasses.dataclass(frozen=True)
class BlockAxis(PairAxis):
    """One spatial axis in blocks: the queries of a block, the context positions of its window, and the cuts.

    Attributes:
      count: the number of blocks.
      step: the distance between the first context positions of neighboring blocks.
    """

    count: Size = 1
    step: Size = 1


def split(x: Tensor, axes: Sequence[BlockAxis]) -> Tensor:
    """Cuts a map into blocks: [b, *size, ...] -> [b * blocks, n, ...], padded with zeros at the end.

    With two axes, which make p x q blocks of r x s queries of c numbers, the shapes are [b, p * r, q * s, c],
    [b, p * r, q, s * c], [b, q, p * r, s * c] and [b * q * p, r * s, ...]: no more axes than images have.
    """
    rank = len(axes)
    b, *shape = sizes(x)
    depth = shape[rank:]
    x = K.reshape(x, [b, *shape[:rank], product(depth)])
    for number, axis in enumerate(axes):
        x = tensors.pad(x, number + 1, 0, axis.count * axis.num_queries - shape[number])
    x = K.reshape(x, [b, *_cut_shape(axes, product(depth))])
    x = K.transpose(x, [0, *range(2 * rank - 2, 0, -2), *range(1, 2 * rank, 2)])
    n = product([axis.num_queries for axis in axes])
    return K.reshape(x, [b * num_blocks(axes), n, *depth])


def merge(x: Tensor, axes: Sequence[BlockAxis], size: Sequence[Size]) -> Tensor:
    """Puts blocks together again, the inverse of `split`: [b * blocks, n, ...] -> [b, *size, ...].

    With two axes the shapes are [b * q * p, r * s, ...], [b, q, p * r, s * c], [b, p * r, q, s * c] and
    [b, p * r, q * s, c], which is then cut to `size`.

    Args:
      x: the blocks, [b * blocks, n, ...], in the order of `split`.
      axes: the blocks along each axis.
      size: the size of the map, without the padding of `split`.
    """
    rank = len(axes)
    groups, _, *depth = sizes(x)
    b = groups // num_blocks(axes)
    first, *others = _cut_shape(axes, product(depth))
    x = K.reshape(x, [b, *others[-2::-2], first, *others[1::2]])
    pairs = [
        part for number in range(1, rank) for part in (rank - number, rank + number)
    ]
    x = K.transpose(x, [0, rank, *pairs])
    padded = [axis.count * axis.num_queries for axis in axes]
    x = K.reshape(x, [b, *padded, product(depth)])
    x = x[(slice(None), *(slice(0, n) for n in size))]
    return K.reshape(x, [b, *size, *depth])


def _cut_shape(axes: Sequence[BlockAxis], depth: Size) -> list[Size]:
    """The shape of a map whose axes but the first are cut: [p * r, q, s, ...], the last one times `depth`."""
    first, *others = axes
    shape = [first.count * first.num_queries]
    for axis in others:
        shape += [axis.count, axis.num_queries]
    return [*shape[:-1], shape[-1] * depth]


def num_blocks(axes: Sequence[BlockAxis]) -> Size:
    """Returns the number of blocks per example."""
    return product([axis.count for axis in axes])


def gather_windows(x: Tensor, axes: Sequence[BlockAxis]) -> Tensor:
    """Gathers all windows in one step: [b, *size, c] -> [b * blocks, m, c].

    A position is in a few known windows, so the gradient is a gather and a sum as well, many times faster
    than the scatter-add or the padded slices that TensorFlow would derive.
    """
    b, *size, c = sizes(x)
    blocks = num_blocks(axes)
    m = _window_size(axes)

    @K.custom_gradient
    def gather(flat: Tensor) -> tuple[Tensor, K.Gradient]:
        def grad(upstream: Tensor) -> Tensor:
            places = _places_in_windows(tuple(axes), tuple(size))
            return K.sum(
                _gather_rows(K.reshape(upstream, [b, blocks * m, c]), places), axis=2
            )

        return K.reshape(
            _gather_rows(flat, _sources(tuple(axes), tuple(size))), [b * blocks, m, c]
        ), grad

    return gather(K.reshape(x, [b, product(size), c]))


Gather = Callable[[Tensor, Sequence[BlockAxis]], Tensor]


def extract_windows(
    x: Tensor, axes: Sequence[BlockAxis], gather: Gather = gather_windows
) -> Tensor:
    """Cuts a map into the windows of its blocks, zero outside: [b, *size, c] -> [b * blocks, m, c].

    `gather` collects the windows, unless there is just one with the whole map.
    """
    b, *size, c = sizes(x)
    windows = [(axis.first_context, axis.num_context) for axis in axes]
    count = num_blocks(axes)
    is_known = all(isinstance(n, int) for n in (*size, count))
    if is_known and count == 1 and windows == [(0, n) for n in size]:
        return K.reshape(x, [b, product(size), c])
    return gather(x, axes)


@tensors.cache_by_size
def window_positions(axis: BlockAxis, size: Size) -> Tensor:
    """Returns the position at each place of each window, [count, window]; -1 outside the map."""
    starts = axis.step * K.arange(axis.count)[:, K.newaxis]
    positions = starts + axis.first_context + K.arange(axis.num_context)
    return K.where((positions >= 0) & (positions < size), positions, -1)


def _window_size(axes: Sequence[BlockAxis]) -> Size:
    return product([axis.num_context for axis in axes])


def _gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of [b, n, c] by number, [b, *rows, c]; zeros for the number -1."""
    return K.take(K.pad(x, [[0, 0], [1, 0], [0, 0]]), rows + 1, axis=1)


@tensors.cache_by_size
def _sources(axes: Sequence[BlockAxis], size: Sequence[Size]) -> Tensor:
    """The position of the flattened map at each place of each window, [blocks, m]; -1 outside the map."""
    positions = []
    for i, axis in enumerate(axes):
        position = window_positions(axis, size[i])
        positions.append(
            K.where(position >= 0, position * product(size[i + 1 :]), -product(size))
        )
    return _outer_sum(positions, first_fastest=True)


@tensors.cache_by_size
def _places_in_windows(axes: Sequence[BlockAxis], size: Sequence[Size]) -> Tensor:
    """The places in all windows that show each position, [n, windows that overlap]; -1 for fewer.

    The module's docstring has an example. Along one axis, a position is `offset` places into a window that
    begins at or before it, the last of which is number `shifted // axis.step`.
    """
    places = []
    m = _window_size(axes)
    for i, axis in enumerate(axes):
        shifted = K.arange(size[i])[:, K.newaxis] - axis.first_context
        block = shifted // axis.step - K.arange(ceil_div(axis.num_context, axis.step))
        offset = shifted - block * axis.step
        place = block * num_blocks(axes[:i]) * m + offset * _window_size(axes[i + 1 :])
        exists = (block >= 0) & (block < axis.count) & (offset < axis.num_context)
        places.append(K.where(exists, place, -num_blocks(axes) * m))
    return _outer_sum(places)


def _outer_sum(indices: Sequence[Tensor], first_fastest: bool = False) -> Tensor:
    """Sums of all combinations along axes, [a_i, b_i] -> [a, b]; -1 where one is far below zero.

    The last axis varies fastest in b, and in a too or, as in the order of blocks, the first one.
    """
    rank = len(indices)
    total = K.convert_to_tensor(0)
    for i, index in enumerate(indices):
        shape = [1] * (2 * rank)
        shape[rank - 1 - i if first_fastest else i], shape[rank + i] = sizes(index)
        total = total + K.reshape(index, shape)
    rows = product([sizes(index)[0] for index in indices])
    return K.maximum(
        K.reshape(total, [rows, product([sizes(index)[1] for index in indices])]), -1
    )
