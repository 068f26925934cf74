# SPDX-License-Identifier: Apache-2.0
"""Outputs of a network for pictures and volumes that are too large for it, window by window."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lambdanet.backend import keras
from lambdanet.backend.tensors import PerAxis, per_axis, round_up
from lambdanet.errors import invalid

SIGMA = 1 / 8  # of the weights, in windows


def sliding_window(
    model: keras.Model | Callable[[np.ndarray], Any],
    inputs: Any,
    window: PerAxis,
    overlap: PerAxis,
    multiple: PerAxis = 32,
) -> np.ndarray:
    """Computes a network on overlapping windows of its inputs, and joins the outputs with Gaussian weights.

    Outputs that are nearer than half of the overlap to where a window cuts the inputs are left out. So the
    result equals that for the whole inputs at once, where the network sees no further than that, and the
    sides of the inputs are multiples of `multiple`. (A lambda layer with content sees its whole window.)

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
    predict = model.predict_on_batch if isinstance(model, keras.Model) else model
    inputs = np.asarray(inputs)
    size = inputs.shape[1:-1]
    settings = zip(
        size,
        per_axis(window, len(size), "window"),
        per_axis(overlap, len(size), "overlap"),
        per_axis(multiple, len(size), "multiple"),
        strict=True,
    )
    total: Any = 0.0
    weights = np.zeros([*size, 1], np.float32)
    for places in itertools.product(*(list(_windows(*axis)) for axis in settings)):
        at = tuple(slice(start, start + len(weight)) for start, weight in places)
        outputs = np.asarray(predict(inputs[:, *at]))
        if outputs.shape[:-1] != inputs[:, *at].shape[:-1]:
            accepted = f"the size of the inputs, {inputs[:, *at].shape[1:-1]}"
            raise invalid("size of the outputs", accepted, outputs.shape[1:-1])
        if np.ndim(total) == 0:
            total = np.zeros([*inputs.shape[:-1], outputs.shape[-1]], np.float32)
        weight = np.ones([1], np.float32)
        for _, factors in reversed(places):
            weight = np.multiply.outer(factors, weight)
        total[:, *at] += weight * outputs
        weights[at] += weight
    return total / weights


def _windows(
    size: int, window: int, overlap: int, multiple: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the first position of each window along an axis, and the weights of its positions."""
    step = (window - overlap) // multiple * multiple
    if step <= 0 or overlap < 0:
        accepted = f"from 0 to window - multiple, {window - multiple}"
        raise invalid("overlap", accepted, overlap)
    margin = overlap // 2
    last = round_up(max(size - window, 0), multiple)
    for start in (*range(0, last, step), last):
        places = np.arange(min(window, size - start))
        weights = np.exp(-0.5 * ((places + 0.5) / window - 0.5) ** 2 / SIGMA**2)
        if start > 0:
            weights[:margin] = 0
        if start + window < size:
            weights[window - margin :] = 0
        yield start, weights.astype(np.float32)
