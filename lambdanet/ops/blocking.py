# SPDX-License-Identifier: Apache-2.0
"""Cutting a map into blocks of queries, each with the window of context around it.

Blocks are numbered with the first axis varying fastest, [b * counts of the last axis, ..., of the first],
which is the order that one-hot products yield on a TPU.
"""

import dataclasses
from collections.abc import Callable, Sequence

from lambdanet import backend as K
from lambdanet.backend import tensors
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

    @classmethod
    def cut(
        cls,
        num_queries: Size,
        num_context: Size,
        length: int | None,
        halo: int,
        strides: int = 1,
        dilation: int = 1,
    ) -> "BlockAxis":
        """Cuts an axis into blocks of `length` queries, whose windows reach `halo` positions beyond them.

        A length of None, or one that is known to cover the axis, makes one block with the whole context.
        """
        if length is None or (isinstance(num_queries, int) and num_queries <= length):
            return cls(num_queries, num_context, 0, strides, dilation, step=num_context)
        step, count = length * strides, ceil_div(num_queries, length)
        return cls(length, step - strides + 1 + 2 * halo, -halo, strides, dilation, count=count, step=step)

    @property
    def blocked_length(self) -> Size:
        """The queries of all blocks, with those that fill up the last block."""
        return self.count * self.num_queries


def split(x: K.Tensor, axes: Sequence[BlockAxis]) -> K.Tensor:
    """Cuts a map into blocks: [b, *size, ...] -> [b * blocks, n, ...], padded with zeros at the end."""
    rank = len(axes)
    shape = sizes(x)
    b, size, rest = shape[0], shape[1 : rank + 1], shape[rank + 1 :]
    if _is_single_block(axes, _queries(axes), size):
        return K.reshape(x, [b, product(size), *rest])
    for number, axis in enumerate(axes):
        x = tensors.pad(x, number + 1, 0, axis.blocked_length - size[number])
    x = K.reshape(x, [b, *(n for axis in axes for n in (axis.count, axis.num_queries)), *rest])
    depth = range(2 * rank + 1, len(x.shape))
    x = K.transpose(x, [0, *range(2 * rank - 1, 0, -2), *range(2, 2 * rank + 1, 2), *depth])
    return K.reshape(x, [b * num_blocks(axes), product(_queries(axes)), *rest])


def merge(x: K.Tensor, axes: Sequence[BlockAxis], size: Sequence[Size]) -> K.Tensor:
    """Puts blocks together again, the inverse of `split`: [b * blocks, n, ...] -> [b, *size, ...]."""
    rank = len(axes)
    b, _, *rest = sizes(x)
    if _is_single_block(axes, _queries(axes), size):
        return K.reshape(x, [b, *size, *rest])
    b //= num_blocks(axes)
    x = K.reshape(x, [b, *(axis.count for axis in reversed(axes)), *_queries(axes), *rest])
    pairs = [part for number in range(1, rank + 1) for part in (rank - number + 1, rank + number)]
    x = K.transpose(x, [0, *pairs, *range(2 * rank + 1, len(x.shape))])
    x = K.reshape(x, [b, *(axis.blocked_length for axis in axes), *rest])
    return x[(slice(None), *(slice(0, n) for n in size))]


def num_blocks(axes: Sequence[BlockAxis]) -> Size:
    """Returns the number of blocks per example."""
    return product([axis.count for axis in axes])


def gather_windows(x: K.Tensor, axes: Sequence[BlockAxis]) -> K.Tensor:
    """Gathers all windows in one step: [b, *size, c] -> [b * blocks, m, c].

    A position is in a few known windows, so the gradient is a gather and a sum as well, many times faster
    than the scatter-add or the padded slices that TensorFlow would derive.
    """
    b, *size, c = sizes(x)
    blocks, m = num_blocks(axes), product(_windows(axes))

    @K.custom_gradient
    def gather(flat):
        def grad(upstream):
            places = _places_in_windows(tuple(axes), tuple(size))
            return K.sum(_gather_rows(K.reshape(upstream, [b, blocks * m, c]), places), axis=2)

        return K.reshape(_gather_rows(flat, _sources(tuple(axes), tuple(size))), [b * blocks, m, c]), grad

    return gather(K.reshape(x, [b, product(size), c]))


Gather = Callable[[K.Tensor, Sequence[BlockAxis]], K.Tensor]


def extract_windows(x: K.Tensor, axes: Sequence[BlockAxis], gather: Gather = gather_windows) -> K.Tensor:
    """Cuts a map into the windows of its blocks, zero outside: [b, *size, c] -> [b * blocks, m, c].

    `gather` collects the windows, unless there is just one with the whole map.
    """
    b, *size, c = sizes(x)
    if _is_single_block(axes, _windows(axes), size):
        return K.reshape(x, [b, product(size), c])
    return gather(x, axes)


@tensors.precomputed
def window_positions(axis: BlockAxis, size: Size) -> K.Tensor:
    """Returns the position at each place of each window, [count, window]; -1 outside the map."""
    starts = axis.step * K.arange(axis.count)[:, K.newaxis]
    positions = starts + axis.first_context + K.arange(axis.num_context)
    return K.where((positions >= 0) & (positions < size), positions, -1)


def _queries(axes: Sequence[BlockAxis]) -> list[Size]:
    return [axis.num_queries for axis in axes]


def _windows(axes: Sequence[BlockAxis]) -> list[Size]:
    return [axis.num_context for axis in axes]


def _is_single_block(axes: Sequence[BlockAxis], lengths: Sequence[Size], size: Sequence[Size]) -> bool:
    """Whether there is one block, whose queries or window of these lengths are the whole map and no more."""
    return all(
        isinstance(axis.count, int)
        and axis.count == 1
        and axis.first_context == 0
        and not (isinstance(n, int) and isinstance(length, int) and length != n)
        for axis, length, n in zip(axes, lengths, size, strict=True)
    )


def _gather_rows(x: K.Tensor, rows: K.Tensor) -> K.Tensor:
    """Rows of [b, n, c] by number, [b, *rows, c]; zeros for the number -1."""
    return K.take(K.pad(x, [[0, 0], [1, 0], [0, 0]]), rows + 1, axis=1)


@tensors.precomputed
def _sources(axes: Sequence[BlockAxis], size: Sequence[Size]) -> K.Tensor:
    """The position of the flattened map at each place of each window, [blocks, m]; -1 outside the map."""
    positions = [window_positions(axis, n) for axis, n in zip(axes, size, strict=True)]
    m = product(_windows(axes))
    sources = K.reshape(_ravel(positions, _row_major(size)), [*(axis.count for axis in axes), m])
    sources = K.transpose(sources, [*range(len(axes))[::-1], len(axes)])
    return K.reshape(sources, [num_blocks(axes), m])


@tensors.precomputed
def _places_in_windows(axes: Sequence[BlockAxis], size: Sequence[Size]) -> K.Tensor:
    """The places in all windows that show each position, [n, windows that overlap]; -1 for fewer."""
    blocks, offsets = [], []
    for axis, n in zip(axes, size, strict=True):
        shifted = K.arange(n)[:, K.newaxis] - axis.first_context
        block = shifted // axis.step - K.arange(ceil_div(axis.num_context, axis.step))
        offset = shifted - block * axis.step
        exists = (block >= 0) & (block < axis.count) & (offset < axis.num_context)
        blocks.append(K.where(exists, block, -1))
        offsets.append(offset)
    block = _ravel(blocks, _row_major([axis.count for axis in reversed(axes)])[::-1])
    offset = _ravel(offsets, _row_major(_windows(axes)))
    return K.where(block >= 0, block * product(_windows(axes)) + offset, -1)


def _row_major(size: Sequence[Size]) -> list[Size]:
    """The steps in a flattened map from one position to the next along each axis."""
    return [product(size[axis + 1 :]) for axis in range(len(size))]


def _ravel(indices: Sequence[K.Tensor], steps: Sequence[Size]) -> K.Tensor:
    """Flat indices of all combinations of indices along axes, [a_i, b_i] -> [a, b]; -1 where one is -1."""
    rank = len(indices)
    total, valid = K.convert_to_tensor(0), K.convert_to_tensor(True)
    for axis, (index, step) in enumerate(zip(indices, steps, strict=True)):
        a, b = sizes(index)
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = a, b
        index = K.reshape(index, shape)
        total, valid = total + index * step, valid & (index >= 0)
    rows = product([sizes(index)[0] for index in indices])
    return K.reshape(K.where(valid, total, -1), [rows, product([sizes(index)[1] for index in indices])])
