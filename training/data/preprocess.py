# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of a recipe: crop, resize, augmentation and normalization."""

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import AUGMENTATIONS, POLICIES
from lambdanet.models import tensorflow_squares
from lambdanet.models.preprocessing import NONE, Preprocessing
from lambdanet.training.data import augment
from lambdanet.training.data.image_bytes import Decoded, Encoded
from lambdanet.training.data.rand_augment import Policy

# Of the color jitter, RandAugment, which derives others from it, and erasing; views derive 0 and 1.
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


def for_training(
    image: Encoded | Decoded, recipe: Recipe, seed: tf.Tensor
) -> tf.Tensor:
    """Returns an image of training, cropped, resized and augmented as in the recipe.

    The same seed, int64 [2], gives the same image, uint8 [training_size, training_size, c], for `normalize`.
    """
    prepare = dataclasses.replace(of_recipe(recipe), input_size=recipe.training_size)
    pixels = _view(image, recipe, seed, prepare.square)
    jitter, rand_augment, erase = (
        augment.derive_seed(seed, number) for number in SEEDS
    )
    if recipe.color_jitter:
        pixels = augment.color_jitter(pixels, recipe.color_jitter, jitter)
    if recipe.randaugment_layers:
        policy: Policy = pkgutil.resolve_name(POLICIES[recipe.randaugment_policy])
        pixels = policy(pixels, recipe, rand_augment)
    if recipe.random_erasing:
        pixels = augment.erase(pixels, recipe.random_erasing, erase)
    return pixels


def mask_for_training(mask: tf.Tensor, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns the mask of the picture that `for_training` returns, uint8 [training_size, training_size].

    Args:
      mask: of the whole picture, uint8 [h, w].
      recipe: the recipe.
      seed: that of the picture.
    """
    size = recipe.training_size
    square = functools.partial(_nearest_square, recipe=recipe, size=size)
    image = Decoded(_inverted(mask))
    view = _view(image, recipe, seed, square, interpolation="nearest")
    return 255 - view[..., 0]


def mask_for_evaluation(mask: tf.Tensor, recipe: Recipe) -> tf.Tensor:
    """Returns the mask of the picture in evaluation, uint8 [input_size, input_size], for one [h, w]."""
    square = _nearest_square(_inverted(mask), recipe, recipe.input_size)
    return 255 - tf.cast(tf.round(255.0 * square[..., 0]), tf.uint8)


def _inverted(mask: tf.Tensor) -> tf.Tensor:
    """Returns a mask as a picture [h, w, 1] in which ignored pixels, 255, are as black as what is padded."""
    return 255 - mask[..., tf.newaxis]


def _nearest_square(mask: tf.Tensor, recipe: Recipe, size: int) -> tf.Tensor:
    square: Any = tensorflow_squares.SQUARES[recipe.interpolation]
    return square(mask, size, recipe.crop_fraction, "nearest")


def _view(
    image: Encoded | Decoded,
    recipe: Recipe,
    seed: tf.Tensor,
    square: Callable[[tf.Tensor], tf.Tensor],
    interpolation: str = "bilinear",
) -> tf.Tensor:
    """Returns the recipe's view of an image, uint8 [training_size, training_size, c]."""
    size = recipe.training_size

    def scale(sides: tf.Tensor) -> Any:
        if recipe.interpolation == NONE:
            return 1.0
        return size / (recipe.crop_fraction * tf.reduce_min(sides))

    view: augment.View = pkgutil.resolve_name(AUGMENTATIONS[recipe.augmentation])
    return view(image, size, augment.Sampler(square, scale, interpolation), seed)


def normalize(images: tf.Tensor, recipe: Recipe) -> tf.Tensor:
    """Returns images uint8 [..., c] as models take them: float32, `(x / 255 - mean) / std`.

    A single channel is repeated where the mean has more. With mixed precision the result is bfloat16: the
    model computes in it anyway, and the transfer to the device is half as large.
    """
    levels = dataclasses.replace(
        of_recipe(recipe),
        mean=tuple(255 * mean for mean in recipe.mean),
        std=tuple(255 * std for std in recipe.std),
    )
    pixels = levels.normalize(tf.cast(images, tf.float32))
    return tf.cast(pixels, tf.bfloat16) if recipe.mixed_precision else pixels
