# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of a recipe: crop, resize, augmentation and normalization."""

import dataclasses

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data import augment
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.rand_augment import POLICIES

# Of the color jitter, RandAugment, which derives others from it, and erasing; views derive 0 and 1,
# those with masks, which RandAugment does not change, 0 to 3.
SEEDS = (1000, 2, 1001)


def of_recipe(recipe: Recipe) -> Preprocessing:
    """Returns the preprocessing of evaluation, which the exported SavedModel shares."""
    return Preprocessing(
        recipe.input_size,
        recipe.mean,
        recipe.std,
        recipe.crop_fraction,
        recipe.interpolation,
    )


def training_view(image: Encoded, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns the part of an image that training sees, by the `augmentation` of the recipe.

    The same seed, int64 [2], gives the same one, uint8 [size_in_training, size_in_training, c].
    """
    prepare = dataclasses.replace(of_recipe(recipe), input_size=recipe.size_in_training)
    view = augment.AUGMENTATIONS[recipe.augmentation]
    return view(image, prepare, seed)


def change_pixels(pixels: tf.Tensor, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns an image uint8 [h, w, c] after color jitter, RandAugment and erasing of the recipe."""
    jitter, rand_augment, erase = (
        augment.derive_seed(seed, number) for number in SEEDS
    )
    if recipe.color_jitter:
        pixels = augment.color_jitter(pixels, recipe.color_jitter, jitter)
    if recipe.randaugment_layers:
        policy = POLICIES[recipe.randaugment_policy]
        pixels = policy(pixels, recipe, rand_augment)
    if recipe.random_erasing:
        pixels = augment.erase(pixels, recipe.random_erasing, erase)
    return pixels


def normalize(images: tf.Tensor, recipe: Recipe) -> tf.Tensor:
    """Returns images uint8 [..., c] as models take them: float32, `(x / 255 - mean) / std`.

    A single channel is repeated where the mean has more. With mixed precision the result is of that type: the
    model computes in it anyway, and the transfer to the device is half as large.
    """
    width = tf.shape(images)[-2]
    mean = augment.row([255 * mean for mean in recipe.mean], width)
    std = augment.row([255 * std for std in recipe.std], width)
    normalized = (tf.cast(images, tf.float32) - mean) / std
    return tf.cast(normalized, recipe.compute_dtype)
