# SPDX-License-Identifier: Apache-2.0
"""Maps at a smaller stride than a network's own, with its weights (Chen et al. 2017, atrous convolution).

Where a network would halve a map that must keep its size, the block sees four copies of the map, which are
shifted by 0 or 1 positions along each axis. The network goes on with all copies, as more examples, and their
outputs interleave to a map of the size that it had. For one axis, and windows of two:

    map                a b c d e f
    copies             a b c d e f         b c d e f 0
    strided windows    (ab) (cd) (ef)      (bc) (de) (f0)
    interleaved        (ab) (bc) (cd) (de) (ef) (f0)

A layer after the stride sees every second position of its map, as with a dilation of 2: convolutions, lambda
layers with their content, and all kinds of attention. Every second position of the finer map is exactly that
of the network without an output stride.
"""

import math
from collections.abc import Mapping
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.backend.tensors import sizes
from lambdanet.core.errors import check_count
from lambdanet.layers.layer import Layer

NATIVE = 32  # the stride of the last map of all networks
OUTPUT_STRIDES = (8, 16, NATIVE)


def last_by_stride(maps: Mapping[str, Any], output_stride: int) -> dict[int, Any]:
    """Returns the last map at each stride, by the logarithm of the stride.

    Args:
      maps: the maps of a network by level, from the first to the last.
      output_stride: the largest stride of a map.
    """
    last_level = int(math.log2(output_stride))
    return {min(int(level), last_level): x for level, x in maps.items()}


class FinerMaps:
    """Keeps the maps of a trunk at a stride, while it is built.

    Args:
      output_stride: the largest stride of a map.
      strides: the stride of the map that the first block reads.
    """

    def __init__(self, output_stride: int, strides: int):
        self.output_stride = output_stride
        self.strides = strides
        self._sources: list[Any] = []  # the maps that were copied
        self._levels: dict[str, tuple[Any, int]] = {}

    def before_block(self, x: Tensor, strides: int, name: str) -> Tensor:
        """Returns what a block reads: the map, or copies of it instead of a larger stride."""
        if strides == 1:
            return x
        if self.strides * strides <= self.output_stride:
            self.strides *= strides
            return x
        self._sources.append((x, strides))
        return ShiftedCopies(strides, name=f"{name}_copies")(x)

    def after_block(self, x: Tensor, level: str) -> None:
        """Keeps the last output at a level."""
        self._levels[level] = x, len(self._sources)

    def endpoints(self) -> dict[str, Any]:
        """Returns the maps of all levels, interleaved."""
        endpoints = {}
        for level, (x, copies) in self._levels.items():
            for number in reversed(range(copies)):
                source, strides = self._sources[number]
                name = f"c{level}_interleaved{number + 1}"
                x = InterleavedMaps(strides, name=name)([x, source])
            endpoints[level] = x
        return endpoints


class _Strided(Layer):
    """A layer with the argument `strides`."""

    def __init__(self, strides: int = 2, **kwargs: Any):
        super().__init__(**kwargs)
        self.strides = check_count("strides", strides)


@keras.saving.register_keras_serializable(package="lambdanet")
class ShiftedCopies(_Strided):
    """Copies of a map, shifted by less than `strides` positions: [b, h, w, c] -> [strides^2 b, h, w, c].

    Args:
      strides: the number of copies along each axis.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.
    """

    def call(self, inputs: Tensor) -> Tensor:
        copies = []
        for dy in range(self.strides):
            for dx in range(self.strides):
                paddings = [[0, 0], [0, dy], [0, dx], [0, 0]]
                copies.append(K.pad(inputs[:, dy:, dx:], paddings))
        return K.concatenate(copies, axis=0)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        b, *size, channels = input_shape
        return (None if b is None else self.strides**2 * b, *size, channels)


@keras.saving.register_keras_serializable(package="lambdanet")
class InterleavedMaps(_Strided):
    """The outputs for shifted copies of a map as one map: [s^2 b, h / s, w / s, d] -> [b, h, w, d].

    Args:
      strides: s, as of `ShiftedCopies`.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: the outputs, and the map that was copied, [b, h, w, c], for its size.
    """

    def call(self, inputs: list[Tensor]) -> Tensor:
        outputs, source = inputs
        _, h, w, _ = sizes(source)
        _, rows, columns, depth = sizes(outputs)
        s = self.strides
        maps = keras.ops.split(outputs, s * s, axis=0)
        # No tensor has more than four axes: neighbors along the width are neighbors on the axis of channels
        # before, and those along the height on the axis of the width.
        lines = []
        for dy in range(s):
            line = K.concatenate(maps[dy * s : (dy + 1) * s], axis=-1)
            lines.append(K.reshape(line, [-1, rows, columns * s, depth]))
        y = K.concatenate(lines, axis=2)  # [b, rows, s columns s, depth]
        return K.reshape(y, [-1, rows * s, columns * s, depth])[:, :h, :w]

    def compute_output_shape(self, input_shape: list[Shape]) -> Shape:
        outputs, source = input_shape
        return (*source[:-1], outputs[-1])
