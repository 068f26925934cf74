# SPDX-License-Identifier: Apache-2.0
"""The windows of pictures with masks are similarities, whose parts have the promised distributions."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from scipy.ndimage import binary_erosion

from lambdanet.training.data import mask_view
from lambdanet.training.data.class_names import IGNORED

HEIGHT, WIDTH, SIZE = 200, 160, 64
NUM_WINDOWS = 80
# The column and the row of each pixel of the picture, and its column again as the mask.
COLUMNS, ROWS = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
PICTURE = np.stack([COLUMNS, ROWS, 0 * ROWS], -1).astype(np.uint8)
MASK = COLUMNS.astype(np.uint8)


def fitted_maps(augmentation):
    """Returns the affine map of each window, [n, 2, 3], from its (x, y, 1) to (x, y) of the picture."""
    view = tf.function(partial(mask_view.view, PICTURE, MASK, SIZE, augmentation))
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    places = np.stack([x, y, np.ones_like(x)], -1)
    maps = []
    biases = []
    for seed in range(NUM_WINDOWS):
        picture, mask = (x.numpy() for x in view(tf.constant([7, seed], tf.int64)))
        # At the border of the picture, it is interpolated with black.
        inside = binary_erosion(mask != IGNORED, iterations=2)
        found = picture[inside][:, :2].astype(float)
        fitted, *_ = np.linalg.lstsq(places[inside], found)
        # Rounded to integers, each is off by half a pixel at most.
        assert np.abs(places[inside] @ fitted - found).max() < 0.75
        biases.append(np.mean(found[:, 0] - mask[inside]))
        maps.append(fitted.T)
    # The nearest column is left of the interpolated one as often as right of it.
    assert abs(np.mean(biases)) < 0.05
    return np.array(maps)


@pytest.mark.parametrize("augmentation", mask_view.LIMITS)
def test_windows_are_similarities_within_limits(augmentation):
    limits = mask_view.LIMITS[augmentation]
    maps = fitted_maps(augmentation)
    linear = maps[:, :, :2]
    determinants = np.linalg.det(linear)
    squares = linear.transpose(0, 2, 1) @ linear
    expected = abs(determinants)[:, np.newaxis, np.newaxis] * np.eye(2)
    np.testing.assert_allclose(squares, expected, rtol=0.02, atol=0.03)
    is_flipped = determinants < 0
    num_flipped = NUM_WINDOWS / 2 if limits.flips else 0
    assert is_flipped.sum() == pytest.approx(num_flipped, abs=15 * limits.flips)
    sines = linear[:, 1, 0] * np.where(is_flipped, -1, 1)
    angles = np.arctan2(sines, linear[:, 1, 1])
    zooms = np.log(abs(determinants)) / 2
    # The way of the middle from the middle of the picture, as a share of what is possible.
    middle = maps @ [(SIZE - 1) / 2, (SIZE - 1) / 2, 1]
    way = middle - [(WIDTH - 1) / 2, (HEIGHT - 1) / 2]
    free = [WIDTH, HEIGHT] - SIZE * np.exp(zooms)[:, np.newaxis]
    shares = way / (free / 2)
    for values, limit, tolerance in (
        (angles, limits.turn, 0.01),
        (zooms, np.log(limits.scale), 0.01),
        (shares[:, 0], limits.shift, 0.05),
        (shares[:, 1], limits.shift, 0.05),
    ):
        assert abs(values).max() <= limit + tolerance
        assert values.min() <= tolerance - 0.9 * limit
        assert values.max() >= 0.9 * limit - tolerance
