# SPDX-License-Identifier: Apache-2.0
"""Cutting a map into blocks of queries, each with the window of context around it.

The blocks of a map are numbered along the first axis first, [b * counts of the last axis, ..., of the first]:
so lie the windows that a TPU collects by products.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from lambdanet import tensors
from lambdanet.tensors import Size, product, sizes


@dataclasses.dataclass(frozen=True)
class Axis:
    """How one spatial axis is cut.

    Attributes:
      count: the number of blocks.
      length: queries per block.
      step: the distance between the first context positions of neighbouring blocks.
      window: context positions per block.
      first: the first context position of a block, seen from its first query.
    """

    count: Size
    length: Size
    step: Size
    window: Size
    first: int

    @classmethod
    def of(
        cls,
        num_queries: Size,
        num_context: Size,
        length: int | None,
        halo: int,
        strides: int = 1,
    ) -> "Axis":
        """Cuts an axis into blocks of `length` queries, whose windows reach `halo` positions beyond them.

        A length of None, or one that is known to cover the axis, makes one block with the whole context.
        """
        if length is None or (isinstance(num_queries, int) and num_queries <= length):
            return cls(1, num_queries, num_context, num_context, 0)
        step = length * strides
        return cls(-(-num_queries // length), length, step, step - strides + 1 + 2 * halo, -halo)


def cut(x: tf.Tensor, axes: Sequence[Axis]) -> tf.Tensor:
    """Cuts a map into blocks: [b, *size, ...] -> [b * counts, lengths, ...], padded with zeros at the end."""
    rank = len(axes)
    shape = sizes(x)
    b, size, rest = shape[0], shape[1 : rank + 1], shape[rank + 1 :]
    if is_whole(axes, "length", size):
        return tf.reshape(x, [b, product(size), *rest])
    for number, axis in enumerate(axes):
        x = tensors.pad(x, number + 1, 0, axis.count * axis.length - size[number])
    x = tf.reshape(x, [b, *(part for axis in axes for part in (axis.count, axis.length)), *rest])
    last = range(2 * rank + 1, x.shape.rank)
    x = tf.transpose(x, [0, *range(2 * rank - 1, 0, -2), *range(2, 2 * rank + 1, 2), *last])
    counts, lengths = _totals(axes, "count"), _totals(axes, "length")
    return tf.reshape(x, [b * counts, lengths, *rest])


def join(x: tf.Tensor, axes: Sequence[Axis], size: Sequence[Size]) -> tf.Tensor:
    """Puts blocks together again, the inverse of `cut`: [b * counts, lengths, ...] -> [b, *size, ...]."""
    rank = len(axes)
    b, _, *rest = sizes(x)
    if is_whole(axes, "length", size):
        return tf.reshape(x, [b, *size, *rest])
    b //= _totals(axes, "count")
    x = tf.reshape(x, [b, *(axis.count for axis in reversed(axes)), *(axis.length for axis in axes), *rest])
    in_order = [part for number in range(1, rank + 1) for part in (rank - number + 1, rank + number)]
    x = tf.transpose(x, [0, *in_order, *range(2 * rank + 1, x.shape.rank)])
    x = tf.reshape(x, [b, *(axis.count * axis.length for axis in axes), *rest])
    return x[(slice(None), *(slice(0, n) for n in size))]


def is_whole(axes: Sequence[Axis], part: str, size: Sequence[Size]) -> bool:
    """Whether there is one block, and its `length` or its `window` is the whole map, with nothing around."""
    return all(
        isinstance(axis.count, int)
        and axis.count == 1
        and axis.first == 0
        and not (isinstance(n, int) and isinstance(getattr(axis, part), int) and getattr(axis, part) != n)
        for axis, n in zip(axes, size, strict=True)
    )


def windows(x: tf.Tensor, axes: Sequence[Axis], by_products: bool = False) -> tf.Tensor:
    """Cuts a map into the overlapping windows of its blocks: [b, *size, c] -> [b * counts, windows, c].

    Positions outside the map are zero. Windows are gathered in one step. A position lies in a few known
    windows, so the gradient is a gather and a sum as well, many times faster than the scatter-add or the
    padded slices that TensorFlow would derive.

    Args:
      x: the map.
      axes: one cut for each spatial axis.
      by_products: collect windows by a product with one-hot rows along each axis, as suits a TPU: both it
        and its gradient leave transposing to the matrix unit. Values then have the precision of products.
    """
    b, *size, c = sizes(x)
    if is_whole(axes, "window", size):
        return tf.reshape(x, [b, product(size), c])
    counts, window = _totals(axes, "count"), _totals(axes, "window")
    if by_products:
        with tf.name_scope("windows"):  # what a profile calls it
            return tf.reshape(_windows_by_products(x, axes), [b * counts, window, c])
    sources = _combined([_source(axis, m) for axis, m in zip(axes, size, strict=True)], _row_major(size))
    by_axis = tf.reshape(sources, [*(axis.count for axis in axes), window])
    sources = tf.reshape(tf.transpose(by_axis, [*range(len(axes))[::-1], len(axes)]), [counts, window])

    @tf.custom_gradient
    def gather(flat):
        def grad(upstream):
            places = _flat_places(axes, size)
            return tf.reduce_sum(_rows(tf.reshape(upstream, [b, counts * window, c]), places), axis=2)

        return tf.reshape(_rows(flat, sources), [b * counts, window, c]), grad

    return gather(tf.reshape(x, [b, product(size), c]))


def _windows_by_products(x: tf.Tensor, axes: Sequence[Axis]) -> tf.Tensor:
    """Windows collected along one axis after the other: [b, *size, c] -> [b, counts * windows, c]."""
    counts, windows, places = "ijk", "pqr", "xyz"
    b = sizes(x)[0]
    for n, (axis, size) in enumerate(zip(axes, sizes(x)[1:-1], strict=True)):
        rows = tf.one_hot(_source(axis, size), size, dtype=x.dtype)  # [count, window, size]
        rows = tf.broadcast_to(rows, [b, *sizes(rows)])  # for each example: the compiler then needs no copy
        before = counts[:n][::-1] + windows[:n] + places[n : len(axes)]
        after = counts[: n + 1][::-1] + windows[: n + 1] + places[n + 1 : len(axes)]
        x = tf.einsum(f"b{counts[n]}{windows[n]}{places[n]},b{before}c->b{after}c", rows, x)
    return x


def _rows(x: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Rows of [b, n, c] by number, [b, *numbers, c]; zeros for the number -1."""
    return tf.gather(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), numbers + 1, axis=1)


def _source(axis: Axis, size: Size) -> tf.Tensor:
    """The position that each place in each window shows, [count, window]; -1 outside the map."""
    position = axis.step * tf.range(axis.count)[:, tf.newaxis] + axis.first + tf.range(axis.window)
    return tf.where((position >= 0) & (position < size), position, -1)


def _flat_places(axes: Sequence[Axis], size: Sequence[Size]) -> tf.Tensor:
    """The places in all windows, counted through, that show each position, [n, pieces]; -1 for fewer."""
    blocks, offsets = [], []
    for axis, m in zip(axes, size, strict=True):
        pieces = -(-axis.window // axis.step)
        shifted = tf.range(m)[:, tf.newaxis] - axis.first
        block = shifted // axis.step - tf.range(pieces)
        offset = shifted - block * axis.step
        exists = (block >= 0) & (block < axis.count) & (offset < axis.window)
        blocks.append(tf.where(exists, block, -1))
        offsets.append(offset)
    block = _combined(blocks, _row_major([axis.count for axis in reversed(axes)])[::-1])
    offset = _combined(offsets, _row_major([axis.window for axis in axes]))
    return tf.where(block >= 0, block * _totals(axes, "window") + offset, -1)


def _row_major(size: Sequence[Size]) -> list[Size]:
    """What one step along each axis adds to the number of a position."""
    return [product(size[axis + 1 :]) for axis in range(len(size))]


def _combined(numbers: Sequence[tf.Tensor], steps: Sequence[Size]) -> tf.Tensor:
    """One number for each combination of those along the axes, [a_i, b_i] -> [a, b]; -1 where one is -1."""
    rank = len(numbers)
    total, valid = tf.constant(0), tf.constant(True)
    for axis, (number, step) in enumerate(zip(numbers, steps, strict=True)):
        a, b = sizes(number)
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = a, b
        number = tf.reshape(number, shape)
        total, valid = total + number * step, valid & (number >= 0)
    rows = product([sizes(number)[0] for number in numbers])
    return tf.reshape(tf.where(valid, total, -1), [rows, product([sizes(number)[1] for number in numbers])])


def _totals(axes: Sequence[Axis], what: str) -> Size:
    return product([getattr(axis, what) for axis in axes])
