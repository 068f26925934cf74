# SPDX-License-Identifier: Apache-2.0
"""From the pixels of an image to what a model takes: crop, resize, augmentation, normalisation."""

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.models.preprocessing.preprocessing import Preprocessing
from lambdanet.training.data import augment
from lambdanet.training.data.image_bytes import Decoded, Encoded


def of_recipe(recipe: Recipe) -> Preprocessing:
    """Returns what evaluation does to the images of a recipe.

    The evaluation data and the exported SavedModel both call this one object, so that they cannot differ.
    """
    return Preprocessing(
        recipe.input_size, recipe.mean, recipe.std, recipe.crop_fraction, recipe.interpolation
    )


def for_training(image: Encoded | Decoded, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns one image as training shows it, changed at random as the recipe says.

    Args:
      image: a file, or pixels.
      recipe: tells the size and the changes.
      seed: int64 [2]; the same seed gives the same image.

    Returns:
      uint8 [input_size, input_size, c]; `normalised` takes batches of them.
    """
    prepare = of_recipe(recipe)
    pixels = augment.VIEWS[recipe.augmentation](image, recipe.input_size, prepare.square, seed)
    if recipe.randaugment_layers:
        seed = augment.another(seed, 2)
        pixels = augment.rand_augment(pixels, recipe.randaugment_layers, recipe.randaugment_magnitude, seed)
    return pixels


def normalised(images: tf.Tensor, recipe: Recipe) -> tf.Tensor:
    """Returns images uint8 [..., c] as a model takes them: float32, less the mean, by the standard deviation.

    A single channel is repeated where the mean has more. With mixed precision, which computes in bfloat16
    anyway, the result is that, and half as large on its way to the device.
    """
    std = tf.constant(recipe.std, tf.float32)
    pixels = tf.cast(images, tf.float32) * (1.0 / (255.0 * std)) - tf.constant(recipe.mean) / std
    return tf.cast(pixels, tf.bfloat16) if recipe.mixed_precision else pixels
