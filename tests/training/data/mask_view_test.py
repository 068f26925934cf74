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
    """Returns a function from a mask and a number to a window of the picture."""

    @tf.function
    def view(mask, seed):
        return mask_view.view(PICTURE, mask, SIZE, augmentation, seed, share)

    def viewed(mask, number):
        seed = tf.constant([7, number], tf.int64)
        return [array.numpy() for array in view(tf.constant(mask), seed)]

    return viewed


def fit_map(picture, mask):
    """Returns the affine map from (x, y, 1) of a window to (x, y) of the picture, and the mask's error."""
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    places = np.stack([x, y, np.ones_like(x)], -1)
    # At the border of the picture, it is interpolated with black.
    inside = binary_erosion(mask != IGNORED, iterations=2)
    found = picture[inside][:, :2].astype(float)
    fitted, *_ = np.linalg.lstsq(places[inside], found)
    # Rounded to integers, each is off by half a pixel at most.
    assert np.abs(places[inside] @ fitted - found).max() < 0.75
    return fitted.T, np.mean(found[:, 0] - mask[inside])


def fitted_maps(augmentation):
    """Returns the map of each window, [n, 2, 3], as of `fit_map`."""
    view = viewer(augmentation)
    fits = [fit_map(*view(MASK, each)) for each in range(NUM_WINDOWS)]
    maps, biases = zip(*fits, strict=True)
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
    limits = mask_view.LIMITS[augmentation]
    middle = (SIZE - 1) / 2
    view = viewer(augmentation, 1.0)
    for x, y in ((0, 0), (159, 199), (2, 120), (90, 197), (80, 100)):
        mask = np.zeros_like(MASK)
        mask[y, x] = 3
        for number in range(6):
            picture, seen = view(mask, number)
            fitted, _ = fit_map(picture, seen)
            place = np.linalg.solve(fitted[:, :2], [x, y] - fitted[:, 2])
            assert abs(place - middle).max() <= SIZE / 2 + 0.05
            if (x, y) == (80, 100):
                assert abs(place - middle).max() <= limits.scale * 0.75
            if limits.scale == 1:
                assert seen.max() == 3


def test_pixels_are_drawn_by_class():
    """Each class alike, and each of its pixels, against counts in NumPy."""
    mask = np.zeros([40, 30], np.uint8)
    mask[:20] = IGNORED
    mask[25:30, 5:25] = 7
    mask[[3, 3, 39], [2, 9, 29]] = 1
    mask[39, 0] = 254
    draw = partial(mask_view.draw_pixel, tf.constant(mask))
    seeds = tf.stack([tf.zeros(3000, tf.int64), tf.range(3000, dtype=tf.int64)], 1)
    x, y = tf.function(partial(tf.map_fn, draw))(seeds).numpy().T
    drawn = mask[y, x]
    classes, counts = np.unique(drawn, return_counts=True)
    assert classes.tolist() == [1, 7, 254]
    np.testing.assert_allclose(counts, 1000, atol=110)
    for number, share in ((1, 1 / 3), (7, 1 / 100)):
        found = np.zeros(mask.shape)
        np.add.at(found, (y[drawn == number], x[drawn == number]), 1 / 1000)
        spread = 5 * np.sqrt(share / 1000)
        np.testing.assert_allclose(found[mask == number], share, atol=spread)


def test_a_share_of_windows_is_around_pixels():
    """The others, and those without a class, are the same as without a share."""
    mask = np.zeros_like(MASK)
    mask[0, 0] = 1
    ordinary = viewer("padded_crop_flip")
    some = viewer("padded_crop_flip", 0.3)
    count = 0
    for number in range(200):
        picture, seen = some(mask, number)
        if not seen.max():
            np.testing.assert_array_equal(picture, ordinary(mask, number)[0])
        count += seen.max()
    assert count == pytest.approx(60, abs=25)
    every = viewer("padded_crop_flip", 1.0)
    for none in (0, IGNORED):
        mask[0, 0] = none
        found, expected = every(mask, 5)[0], ordinary(mask, 5)[0]
        np.testing.assert_array_equal(found, expected)
