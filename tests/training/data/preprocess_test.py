# SPDX-License-Identifier: Apache-2.0
"""Crop, resize and normalization, against plain arithmetic."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, noise
from training_runs import recipe_with

from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data import preprocess
from lambdanet.training.data.image_bytes import Encoded

MEAN, STD = (0.5, 0.25, 0.125), (0.5, 0.25, 2.0)
PLAIN = (0.0,) * 3, (1.0,) * 3


def test_crop_keeps_central_square():
    image = np.zeros([10, 16, 3], np.uint8)
    image[1:9, 4:12] = 255  # the central 8 = 0.8 * 10 pixels
    got = Preprocessing(4, *PLAIN, 0.8)(image)
    np.testing.assert_allclose(got, 1.0, rtol=1e-6)


def test_crop_below_one_pixel_keeps_one():
    got = Preprocessing(2, *PLAIN, 0.1)(np.full([1, 3, 3], 51, np.uint8))
    np.testing.assert_allclose(got, 0.2, rtol=1e-6)


def test_shrinking_averages_pixels():
    stripes = np.zeros([64, 64, 3], np.uint8)
    stripes[:, ::2] = 200
    got = Preprocessing(8, *PLAIN, 1.0)(stripes)
    assert_close(got, 100 / 255, 0.02)


@pytest.mark.parametrize("shape", [(8, 8, 1), (40, 30, 3)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_training_without_augmentation_equals_evaluation(shape, interpolation):
    recipe = recipe_with(
        "digits",
        input_size=16,
        crop_fraction=0.9,
        mean=MEAN,
        std=STD,
        augmentation="none",
        interpolation=interpolation,
    )
    image, seed = noise(*shape), tf.constant([0, 1], tf.int64)
    got = preprocess.normalize(
        preprocess.training_view(Encoded(tf.io.encode_png(image), 3), recipe, seed),
        recipe,
    )
    expected = Preprocessing(16, MEAN, STD, 0.9, interpolation)
    # Half a gray level.
    assert np.abs((got - expected(image)) * STD).max() <= 0.5 / 255 + 1e-6
    assert preprocess.of_recipe(recipe) == expected


def test_mixed_precision_casts_after_normalization():
    recipe = recipe_with("digits", mixed_precision=True)
    images = noise(2, 8, 8, 1)
    full = preprocess.normalize(
        images, dataclasses.replace(recipe, mixed_precision=False)
    )
    np.testing.assert_array_equal(
        preprocess.normalize(images, recipe), tf.cast(full, tf.bfloat16)
    )
