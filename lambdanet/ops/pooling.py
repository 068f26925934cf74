# SPDX-License-Identifier: Apache-2.0
"""Average-pooling with "same" padding: the windows, their contents and their means."""

import dataclasses
from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend.tensors import Size, ceil_div, largest, pad, product, sizes


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows along one axis.

    Attributes:
      count: the number of windows.
      first: the first position of the first window; negative where it begins before the map.
      size: the positions of the map.
      length: the positions of a window.
      strides: the distance between windows.
    """

    count: Size
    first: Size
    size: Size
    length: int
    strides: int

    @classmethod
    def with_same_padding(cls, size: Size, length: int, strides: int) -> "Windows":
        """Returns the windows of TensorFlow's padding "SAME", with equal padding before and after the map."""
        count = ceil_div(size, strides)
        padding = (count - 1) * strides + length - size
        padding = largest(padding, 0)
        return cls(count, -(padding // 2), size, length, strides)

    def window_sizes(self) -> K.Tensor:
        """Returns the number of positions of each window that are on the map, [count]."""
        start = self.strides * K.arange(self.count) + self.first
        return K.minimum(start + self.length, self.size) - K.maximum(start, 0)


def gather(x: K.Tensor, axes: Sequence[Windows]) -> K.Tensor:
    """Collects the contents of windows: [b, *size, ...] -> [b, *counts, *lengths, c], zero off the map."""
    x = _flat(x, len(axes))
    for number, axis in reversed(list(enumerate(axes, start=1))):
        x = K.stack(_shifted(x, number, axis), axis=len(axes) + 1)
    return x


def mean(x: K.Tensor, lengths: Sequence[int], strides: Sequence[int]) -> K.Tensor:
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
        axes = [
            Windows.with_same_padding(*axis)
            for axis in zip(sizes(x)[1 : rank + 1], lengths, strides, strict=True)
        ]
        for number, axis in enumerate(axes, start=1):
            pooled = K.add_n(_shifted(pooled, number, axis))
        pooled = divide_by_count(pooled, axes)
    return K.reshape(pooled, [*sizes(pooled)[:-1], *depth])


def _flat(x: K.Tensor, rank: int) -> K.Tensor:
    """[b, *size, ...] -> [b, *size, c]; TensorFlow slices and pads tensors of at most eight axes."""
    return K.reshape(x, [*sizes(x)[: rank + 1], product(sizes(x)[rank + 1 :])])


def _shifted(x: K.Tensor, number: int, axis: Windows) -> list[K.Tensor]:
    """Returns the first positions of all windows along axis `number`, the second ones, and so on."""
    reach = (axis.count - 1) * axis.strides + 1
    x = pad(x, number, -axis.first, reach + axis.length - 1 + axis.first - axis.size)
    leading = (slice(None),) * number
    return [
        x[(*leading, slice(i, i + reach, axis.strides))] for i in range(axis.length)
    ]


def divide_by_count(x: K.Tensor, axes: Sequence[Windows]) -> K.Tensor:
    """Divides sums over windows, [b, *counts, ...], by the number of positions in each."""
    rank = len(axes)
    dtype = "float64" if K.dtype_name(x.dtype) == "float64" else "float32"
    counts = K.ones([], dtype)
    for axis in axes:
        counts = counts[..., K.newaxis] * K.cast(axis.window_sizes(), dtype)
    counts = K.reshape(counts, [*sizes(counts), *[1] * (len(x.shape) - 1 - rank)])
    return K.cast(K.cast(x, dtype) / counts, x.dtype)
