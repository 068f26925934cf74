# SPDX-License-Identifier: Apache-2.0
"""Average-pooling with "same" padding: the windows, their contents and their means."""

from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import (
    Size,
    at_least_float32,
    ceil_div,
    largest,
    pad,
    product,
    sizes,
)
from lambdanet.ops.blocking import BlockAxis, window_positions


def windows_along(size: Size, length: int, strides: int) -> BlockAxis:
    """Returns the windows of TensorFlow's padding "SAME", with equal padding before and after the map.

    Args:
      size: the positions of the map along the axis.
      length: the positions of a window.
      strides: the distance between windows.
    """
    count = ceil_div(size, strides)
    padding = largest((count - 1) * strides + length - size, 0)
    return BlockAxis(1, length, -(padding // 2), count=count, step=strides)


def mean(x: Tensor, lengths: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Averages over windows along the first axes, with "same" padding that does not count.

    Args:
      x: [b, *size, ...].
      lengths: the positions of a window along each axis of `size`.
      strides: the distance between windows along each of them.

    Returns:
      [b, *counts, ...], one position per window: `size / strides`, rounded up.
    """
    rank = len(lengths)
    depth = sizes(x)[rank + 1 :]
    pooled = _flat(x, rank)
    if rank == 2:
        pooled = K.average_pool(pooled, lengths, strides, "SAME")
    else:  # TensorFlow has no kernels for every type and gradient of the other ranks
        size = sizes(x)[1 : rank + 1]
        axes = [
            windows_along(*axis) for axis in zip(size, lengths, strides, strict=True)
        ]
        for number, axis in enumerate(axes, start=1):
            pooled = K.add_n(_shifted(at_least_float32(pooled), number, axis))
        pooled = K.cast(divide_by_count(pooled, axes, size), x.dtype)
    return K.reshape(pooled, [*sizes(pooled)[:-1], *depth])


def _flat(x: Tensor, rank: int) -> Tensor:
    """[b, *size, ...] -> [b, *size, c]; TensorFlow slices and pads tensors of at most eight axes."""
    return K.reshape(x, [*sizes(x)[: rank + 1], product(sizes(x)[rank + 1 :])])


def _shifted(x: Tensor, number: int, axis: BlockAxis) -> list[Tensor]:
    """Returns the first positions of all windows along axis `number`, the second ones, and so on."""
    reach = (axis.count - 1) * axis.step + 1
    end = reach + axis.num_context - 1 + axis.first_context
    x = pad(x, number, -axis.first_context, end - sizes(x)[number])
    leading = (slice(None),) * number
    return [
        x[(*leading, slice(i, i + reach, axis.step))] for i in range(axis.num_context)
    ]


def divide_by_count(
    x: Tensor, axes: Sequence[BlockAxis], size: Sequence[Size]
) -> Tensor:
    """Divides sums over windows of a map of `size`, [b, *counts, ...], by the positions of each."""
    rank = len(axes)
    wide = at_least_float32(x)
    counts = K.ones([], wide.dtype)
    for axis, n in zip(axes, size, strict=True):
        is_on_map = K.cast(window_positions(axis, n) >= 0, wide.dtype)
        counts = counts[..., K.newaxis] * K.sum(is_on_map, axis=1)
    counts = K.reshape(counts, [*sizes(counts), *[1] * (len(x.shape) - 1 - rank)])
    return K.cast(wide / counts, x.dtype)
