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


def viewer(augmentation, share=0.0):
    """Returns a function from a mask and a seed to a window of the picture and of the mask."""
    view = partial(mask_view.view, PICTURE, size=SIZE, augmentation=augmentation)
    return tf.function(partial(view, foreground_share=share))


def fitted_maps(augmentation):
    """Returns the affine map of each window, [n, 2, 3], from its (x, y, 1) to (x, y) of the picture."""
    view = viewer(augmentation)
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    places = np.stack([x, y, np.ones_like(x)], -1)
    maps = []
    biases = []
    for seed in range(NUM_WINDOWS):
        picture, mask = (x.numpy() for x in view(MASK, seed=np.array([7, seed])))
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


@pytest.mark.parametrize("augmentation", mask_view.LIMITS)
def test_windows_around_pixels_have_them(augmentation):
    """In their middle, but near to borders, where other windows end, too."""
    view = viewer(augmentation, 1.0)
    for x, y in ((159, 0), (2, 199), (80, 100)):
        mask = np.zeros_like(MASK)
        mask[y, x] = 3
        for number in range(6):
            picture, seen = view(mask, seed=np.array([7, number]))
            assert np.mean(seen == IGNORED) < 0.2
            away = abs(np.subtract(picture[..., :2], [x, y], dtype=float)).max(-1)
            assert away.min() <= 1.5
            if y == 100:
                near_middle = away[30:34, 30:34]
                assert near_middle.min() == away.min()


def test_pixels_are_drawn_by_class():
    """Each class alike, and each of its pixels."""
    mask = np.array([[0, 7, 7, 7], [1, IGNORED, 0, 7]], np.uint8)
    draw = partial(mask_view.draw_pixel, tf.constant(mask))
    seeds = np.stack([np.arange(3000)] * 2, 1)
    x, y = tf.function(partial(tf.map_fn, draw))(seeds).numpy().T
    shares = np.bincount(4 * y + x, minlength=8) / 3000
    expected = [0, 1 / 8, 1 / 8, 1 / 8, 1 / 2, 0, 0, 1 / 8]
    np.testing.assert_allclose(shares, expected, atol=0.03)


def test_a_share_of_windows_is_around_pixels():
    """Others are as before, here central, and so are those without a class."""
    mask = np.zeros_like(MASK)
    seeds = [np.array([7, number]) for number in range(200)]
    central, _ = viewer("none")(mask, seed=seeds[0])
    view = viewer("none", 0.3)
    counts = []
    for mask[0, 0] in (1, 0, IGNORED):
        pictures = [view(mask, seed=seed)[0] for seed in seeds]
        counts.append(sum(np.any(picture != central) for picture in pictures))
    assert counts == [pytest.approx(60, abs=25), 0, 0]
