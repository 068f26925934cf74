# SPDX-License-Identifier: Apache-2.0
"""Outputs of a network for pictures and volumes that are too large for it, window by window."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lambdanet.backend import keras
from lambdanet.backend.tensors import PerAxis, per_axis, round_up
from lambdanet.core.errors import check_count, check_natural, invalid

MULTIPLE = 32  # the largest stride of most networks


def sliding_window(
    model: keras.Model | Callable[[np.ndarray], Any],
    inputs: Any,
    window: PerAxis,
    overlap: PerAxis,
    multiple: PerAxis = MULTIPLE,
) -> np.ndarray:
    """Computes a network on overlapping windows of its inputs, and joins their outputs.

    Each output is of the window whose cuts are farthest away, at least half of the overlap. So the
    result equals that for the whole inputs at once, where the network sees no further than that, and the
    sides of the inputs are multiples of `multiple`. (A lambda layer with content sees its whole window.)
    Beside the result, memory is that of a window.

    Args:
      model: a network for inputs of any size, [b, *size, c] -> [b, *size, d], such as of `create_unet`, or a
        function of arrays.
      inputs: pictures [b, h, w, c], sequences or volumes, as the network takes them.
      window: the side of the windows, for all axes or one for each; inputs may be smaller.
      overlap: what neighboring windows share, at least, of all axes or of each.
      multiple: the distances of windows are multiples of it: the largest stride of the network.

    Returns:
      The outputs, float32 [b, *size, d].

    Raises:
      InputError: windows overlap so far that they do not advance, or the outputs have another size.

    Example:
      >>> convolution = keras.Sequential([keras.layers.Conv2D(4, 3, padding="same")])
      >>> sliding_window(convolution, np.zeros([1, 640, 512, 3]), 256, overlap=64).shape
      (1, 640, 512, 4)
    """
    inputs = np.asarray(inputs)
    result: Any = None
    for at, outputs in window_parts(model, inputs, window, overlap, multiple):
        if result is None:
            result = np.empty([*inputs.shape[:-1], outputs.shape[-1]], np.float32)
        result[:, *at] = outputs
    return result


def window_parts(
    model: keras.Model | Callable[[np.ndarray], Any],
    inputs: np.ndarray,
    window: PerAxis,
    overlap: PerAxis,
    multiple: PerAxis = MULTIPLE,
) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Yields the parts of the result of `sliding_window`, window by window.

    Args and errors are those of `sliding_window`.

    Yields:
      The place of a part, a slice for each axis of the size, and its outputs, float32.
    """
    predict = model.predict_on_batch if isinstance(model, keras.Model) else model
    size = inputs.shape[1:-1]
    settings = zip(
        size,
        per_axis(window, len(size), "window"),
        per_axis(overlap, len(size), "overlap"),
        per_axis(multiple, len(size), "multiple"),
        strict=True,
    )
    for places in itertools.product(*(_windows(*axis) for axis in settings)):
        whole, at, within = zip(*places, strict=True)
        cut = inputs[:, *whole]
        outputs = np.asarray(predict(cut))
        if outputs.shape[:-1] != cut.shape[:-1]:
            accepted = f"the size of the inputs, {cut.shape[1:-1]}"
            raise invalid("size of the outputs", accepted, outputs.shape[1:-1])
        yield at, outputs[:, *within]


def check_windows(window: int, overlap: int, multiple: int = MULTIPLE) -> None:
    """Raises `InputError` for windows that are too small, or overlap so far that they do not advance."""
    if check_count("window", window) < multiple:
        accepted = f"at least {multiple}, the distance of windows"
        raise invalid("window", accepted, window)
    if check_natural("overlap", overlap) > window - multiple:
        accepted = f"from 0 to window - multiple, {window - multiple}"
        raise invalid("overlap", accepted, overlap)


def _windows(
    size: int, window: int, overlap: int, multiple: int
) -> list[tuple[slice, slice, slice]]:
    """Returns the windows along an axis: the place of each, of its part, and of that part within it.

    A part ends in the middle of what the window shares with the next one.
    """
    check_windows(window, overlap, multiple)
    step = (window - overlap) // multiple * multiple
    last = round_up(max(size - window, 0), multiple)
    found = []
    begin = 0
    starts = [*range(0, last, step), last]
    for start, following in zip(starts, [*starts[1:], size], strict=True):
        end = size if start == last else (start + window + following) // 2
        whole = slice(start, min(start + window, size))
        found.append((whole, slice(begin, end), slice(begin - start, end - start)))
        begin = end
    return found
