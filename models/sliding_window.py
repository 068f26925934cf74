# SPDX-License-Identifier: Apache-2.0
"""Outputs of a network for pictures and volumes that are too large for it, window by window."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lambdanet.backend import keras
from lambdanet.backend.tensors import PerAxis, per_axis, round_up
from lambdanet.errors import check_count, check_natural, invalid

SIGMA = 1 / 8  # of the weights, in windows
MULTIPLE = 32  # the largest stride of most networks

Model = keras.Model | Callable[[np.ndarray], Any]


def sliding_window(
    model: Model,
    inputs: Any,
    window: PerAxis,
    overlap: PerAxis,
    multiple: PerAxis = MULTIPLE,
) -> np.ndarray:
    """Computes a network on overlapping windows of its inputs, and joins the outputs with Gaussian weights.

    Outputs that are nearer than half of the overlap to where a window cuts the inputs are left out. So the
    result equals that for the whole inputs at once, where the network sees no further than that, and the
    sides of the inputs are multiples of `multiple`. (A lambda layer with content sees its whole window.)
    Beside the result, memory is that of a window, and of what it shares with the next ones.

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
    for at, outputs in finished_parts(model, inputs, window, overlap, multiple):
        if result is None:
            result = np.empty([*inputs.shape[:-1], outputs.shape[-1]], np.float32)
        result[:, *at] = outputs
    return result


def finished_parts(
    model: Model,
    inputs: np.ndarray,
    window: PerAxis,
    overlap: PerAxis,
    multiple: PerAxis = MULTIPLE,
) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Yields the parts of the result of `sliding_window` that later windows do not change, one by one.

    Args and errors are those of `sliding_window`.

    Yields:
      The place of a part, a slice for each axis of the size, and its outputs, float32.
    """
    predict = model.predict_on_batch if isinstance(model, keras.Model) else model
    axes = check_windows(window, overlap, multiple, inputs.ndim - 2)

    def check(part: np.ndarray) -> np.ndarray:
        outputs = np.asarray(predict(part), np.float32)
        if outputs.shape[:-1] != part.shape[:-1]:
            accepted = f"the size of the inputs, {part.shape[1:-1]}"
            raise invalid("size of the outputs", accepted, outputs.shape[1:-1])
        return outputs

    return _join(check, inputs, axes)


def check_windows(
    window: PerAxis, overlap: PerAxis, multiple: PerAxis = MULTIPLE, rank: int = 2
) -> list[tuple[int, int, int]]:
    """Returns the window, the overlap and the multiple of each axis; errors as of `sliding_window`."""
    axes = list(
        zip(
            per_axis(window, rank, "window"),
            per_axis(overlap, rank, "overlap"),
            per_axis(multiple, rank, "multiple"),
            strict=True,
        )
    )
    for side, shared, stride in axes:
        if check_count("window", side) < check_count("multiple", stride):
            accepted = f"at least {stride}, the distance of windows"
            raise invalid("window", accepted, side)
        if check_natural("overlap", shared) > side - stride:
            accepted = f"from 0 to window - multiple, {side - stride}"
            raise invalid("overlap", accepted, shared)
    return axes


def _join(
    predict: Callable[[np.ndarray], np.ndarray],
    inputs: np.ndarray,
    axes: Sequence[tuple[int, int, int]],
) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Yields what `finished_parts` does, for windows of the last axes of the size, and the others whole.

    The windows of the first of these axes come one after the other, each in the parts of the axes behind it.
    What a window shares with the next one, which adds to it, is kept.
    """
    if not axes:
        yield (), predict(inputs)
        return
    (window, overlap, multiple), *others = axes
    axis = inputs.ndim - 1 - len(axes)
    before = (slice(None),) * axis
    size = inputs.shape[axis]
    places = _windows(size, window, overlap, multiple)
    ends = [*(start for start, _ in places[1:]), size]
    kept: Any = None
    for (start, weights), end in zip(places, ends, strict=True):
        cut = inputs[*before, start : start + len(weights)]
        factors = weights.reshape([-1, *[1] * (inputs.ndim - 1 - axis)])
        done = end - start
        shared: Any = None
        for at, outputs in _join(predict, cut, others):
            outputs = factors * outputs
            if kept is not None:
                outputs[*before, : kept.shape[axis]] += kept[*before, :, *at]
            yield (slice(start, end), *at), outputs[*before, :done]
            if done == len(weights):
                continue
            if shared is None:
                sides = [len(weights) - done, *inputs.shape[axis + 1 : -1]]
                shape = [*outputs.shape[:axis], *sides, outputs.shape[-1]]
                shared = np.empty(shape, np.float32)
            shared[*before, :, *at] = outputs[*before, done:]
        kept = shared


def _windows(
    size: int, window: int, overlap: int, multiple: int
) -> list[tuple[int, np.ndarray]]:
    """Returns the first position of each window along an axis, and the weights of its positions.

    The weights of a position sum to 1 over the windows.
    """
    step = (window - overlap) // multiple * multiple
    margin = overlap // 2
    last = round_up(max(size - window, 0), multiple)
    total = np.zeros(size)
    found = []
    for start in (*range(0, last, step), last):
        places = np.arange(min(window, size - start))
        weights = np.exp(-0.5 * ((places + 0.5) / window - 0.5) ** 2 / SIGMA**2)
        if start > 0:
            weights[:margin] = 0
        if start + window < size:
            weights[window - margin :] = 0
        total[start : start + window] += weights
        found.append((start, weights))
    return [
        (start, (weights / total[start : start + window]).astype(np.float32))
        for start, weights in found
    ]
