# SPDX-License-Identifier: Apache-2.0
"""Augmentation of images: against arithmetic, within its bounds, and dependent on the seed alone."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import noise
from PIL import Image, ImageEnhance
from scipy import ndimage
from training_runs import recipe_with

from lambdanet.configs import recipe_values
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data import augment, preprocess
from lambdanet.training.data.image_bytes import Encoded

SEEDS = [tf.constant([0, number], tf.int64) for number in range(40)]


def _encoded(pixels):
    return Encoded(tf.io.encode_png(pixels), pixels.shape[-1])


def _of_size(size):
    return Preprocessing(size, (0.0,), (1.0,))


def _naive_affine(image, seed):
    """Rotates, zooms and shifts about the center, with SciPy's interpolation."""
    drawn = tf.random.stateless_uniform([4], seed, -1.0, 1.0)
    turn, zoom, shift_x, shift_y = drawn.numpy()
    height, width, _ = image.shape
    angle, scale = augment.MAX_TURN * turn, 1 + augment.MAX_ZOOM * zoom
    y, x = np.mgrid[:height, :width]
    dy, dx = y - (height - 1) / 2, x - (width - 1) / 2
    from_x = scale * (np.cos(angle) * dx - np.sin(angle) * dy) + (width - 1) / 2
    from_y = scale * (np.sin(angle) * dx + np.cos(angle) * dy) + (height - 1) / 2
    from_x += augment.MAX_SHIFT * width * shift_x
    from_y += augment.MAX_SHIFT * height * shift_y
    places = [from_y, from_x]
    planes = [
        ndimage.map_coordinates(plane, places, order=1, mode="grid-constant")
        for plane in np.moveaxis(image, -1, 0)
    ]
    return np.stack(planes, -1)


@pytest.mark.parametrize("seed", [[0, 0], [3, 1], [7, 123]])
def test_affine_is_rotation_zoom_and_shift(seed):
    image = np.random.default_rng(1).random([6, 9, 2]).astype(np.float32)
    got = augment.random_affine(tf.constant(image), tf.constant(seed, tf.int64))
    assert got.shape == image.shape
    np.testing.assert_allclose(got, _naive_affine(image, seed), atol=1e-5)


@pytest.mark.parametrize("shape", [(40, 60, 3), (200, 20, 3), (1, 1, 3)])
def test_random_window_is_inside_image(shape):
    for seed in SEEDS:
        top, left, height, width = augment.random_window(
            tf.constant(shape), seed
        ).numpy()
        assert 0 <= top <= shape[0] - height and 0 <= left <= shape[1] - width
        if shape == (40, 60, 3):
            assert 0.06 < height * width / 2400 and 0.65 < width / height < 1.5


def test_crop_flip_is_window_or_its_mirror_image():
    """On an image whose pixels are their positions."""
    rows, columns = 2 * np.indices([100, 100])
    image = _encoded(np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8))
    mirrored = []
    for seed in SEEDS:
        shown = augment.crop_flip(image, _of_size(8), seed).numpy().astype(int)
        assert np.all(np.diff(shown[..., 0], axis=0) > 0)
        across = np.diff(shown[..., 1], axis=1)
        assert np.all(across > 0) or np.all(across < 0)
        mirrored.append(across[0, 0] < 0)
    assert 10 <= sum(mirrored) <= 30  # of 40


def test_flip_is_the_image_or_its_mirror_image():
    image = noise(32, 32, 3)
    shown = [augment.flip(_encoded(image), _of_size(32), seed) for seed in SEEDS]
    mirrored = [np.array_equal(x, image[:, ::-1]) for x in shown]
    same = [np.array_equal(x, image) for x in shown]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert any(mirrored) and any(same)


def test_padded_crop_is_image_shifted_over_black():
    image = noise(32, 32, 3) | 1  # no black pixels
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
    offsets = set()
    for seed in SEEDS:
        shown = augment.padded_crop_flip(_encoded(image), _of_size(32), seed)
        crops = shown, shown[:, ::-1]
        (found,) = (
            (top, left, mirrored)
            for mirrored, top, left in np.ndindex(2, 9, 9)
            if np.array_equal(crops[mirrored], padded[top:, left:][:32, :32])
        )
        offsets.add(found)
    assert len(offsets) > 25


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_color_jitter_equals_pillow(seed):
    image = noise(12, 10, 3)
    expected = Image.fromarray(image)
    factors = tf.random.stateless_uniform([3], seed, 0.6, 1.4).numpy()
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for kind, factor in zip(kinds, factors, strict=True):
        expected = kind(expected).enhance(float(factor))
    got = augment.color_jitter(tf.constant(image), 0.4, seed).numpy()
    # Pillow rounds after each of the three
    assert np.abs(got.astype(int) - np.asarray(expected)).max() <= 3


def test_erased_rectangle_has_area_and_ratio():
    image, areas = np.zeros([100, 80, 1], np.uint8), []
    erase = tf.function(
        lambda seed: augment.erase(tf.constant(image), 1.0, seed), autograph=False
    )
    for seed in SEEDS:
        rows, columns = np.nonzero(erase(seed).numpy()[..., 0])
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert len(rows) > 0.98 * height * width - 3  # noise is 0 in 1 of 256 pixels
        areas.append(height * width / 8000)
        assert 0.25 < height / width < 4
    assert 0.015 < min(areas) < 0.08 and 0.2 < max(areas) < 0.36


def test_erasing_probability():
    image = tf.constant(noise(8, 8, 3))
    erase = tf.function(lambda seed: augment.erase(image, 0.5, seed), autograph=False)
    changed = sum(np.any(erase(seed) != image) for seed in SEEDS)
    assert 10 <= changed <= 30  # of 40


SETTINGS = [
    *({"augmentation": kind} for kind in recipe_values.AUGMENTATIONS),
    {"color_jitter": 1.0},
    {"random_erasing": 1.0},
    {"randaugment_layers": 2, "augmentation": "affine"},
    {"randaugment_layers": 2, "randaugment_policy": "timm"},
]


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_augmentations_have_size_and_depend_on_seed(fields):
    """Whatever the global seed is."""
    plain = {"augmentation": "none", "randaugment_layers": 0, "input_size": 16}
    recipe = recipe_with("digits", **plain | fields)
    image = _encoded(noise(20, 18, 1))
    shown = []
    for number in (1, 1, *range(2, 10)):
        tf.random.set_seed(len(shown))
        seed = tf.constant([0, number], tf.int64)
        pixels = preprocess.training_view(image, recipe, seed)
        shown.append(preprocess.change_pixels(pixels, recipe, seed).numpy())
    first, again, *others = shown
    channels = 3 if fields.keys() & {"randaugment_layers", "color_jitter"} else 1
    assert first.shape == (16, 16, channels) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, again)
    changed = max(np.abs(first.astype(int) - other).max() for other in others)
    assert changed == 0 if fields == {"augmentation": "none"} else changed > 25
