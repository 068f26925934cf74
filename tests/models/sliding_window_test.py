# SPDX-License-Identifier: Apache-2.0
"""Windows of pictures and volumes against the whole at once."""

import keras
import numpy as np
import pytest
from keras import layers
from naive_layers import images
from refusals import refused

from lambdanet import sliding_window


def network(rank):
    """A network with a stride of 2, of which an output depends on inputs up to 7 positions away."""
    convolution = getattr(layers, f"Conv{rank}D")
    upsampling = getattr(layers, f"UpSampling{rank}D")
    inputs = keras.Input([None] * rank + [2])
    x = convolution(4, 3, strides=2, padding="same", activation="relu")(inputs)
    x = convolution(4, 3, padding="same", activation="relu")(x)
    x = convolution(3, 3, padding="same")(upsampling(2)(x))
    return keras.Model(inputs, x)


@pytest.mark.parametrize(
    ("size", "window", "overlap"),
    [
        ((70, 44), 24, 16),
        ((48, 48), (24, 64), (16, 40)),
        ((26, 90), 32, 18),
        ((8, 6), 24, 16),
        ((40, 20, 28), (24, 20, 22), 16),
    ],
)
def test_windows_are_the_whole(size, window, overlap):
    inputs = images(2, *size, 2)
    model = network(len(size))
    found = sliding_window(model, inputs, window, overlap, multiple=2)
    expected = model.predict_on_batch(inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def sums_of_cells(inputs):
    """Sums of inputs [b, length, c] over each cell of 4 positions and the cells beside it."""
    length = inputs.shape[1]
    padded = np.pad(inputs, [(0, 0), (4, 4 + -length % 4), (0, 0)])
    cells = padded.reshape(len(inputs), -1, 4, inputs.shape[-1]).sum(2)
    sums = cells[:, :-2] + cells[:, 1:-1] + cells[:, 2:]
    return np.repeat(sums, 4, axis=1)[:, :length]


@pytest.mark.parametrize(("window", "overlap"), [(24, 8), (22, 12)])
def test_half_of_the_overlap_is_just_enough(window, overlap):
    """A window of 22 cuts its last cell, so its last 6 outputs differ; else 4 at each end."""
    inputs = images(2, 61, 3)
    found = sliding_window(sums_of_cells, inputs, window, overlap, multiple=4)
    np.testing.assert_allclose(found, sums_of_cells(inputs), atol=1e-5)


def test_inputs_of_one_window_are_whole():
    """A function of the whole, and an overlap of 0."""
    inputs = np.arange(8.0).reshape([1, 8, 1])
    found = sliding_window(lambda x: x - x.mean(), inputs, 8, 0, multiple=2)
    np.testing.assert_array_equal(found, inputs - 3.5)


def test_windows_that_do_not_fit():
    inputs = np.zeros([1, 32, 32, 2], np.float32)
    with refused("overlap must be from 0 to window - multiple, 14"):
        sliding_window(network(2), inputs, 16, 15, multiple=2)
    halved = keras.Sequential([layers.Conv2D(2, 3, strides=2, padding="same")])
    with refused("size of the outputs must be the size of the inputs"):
        sliding_window(halved, inputs, 16, 8, multiple=2)
    with refused("window must be one value, or one per spatial axis, 2 here"):
        sliding_window(halved, inputs, (16,), 8)
