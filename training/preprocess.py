# SPDX-License-Identifier: Apache-2.0
"""From the pixels of an image to what a model takes: crop, resize, augmentation, normalisation."""

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training import augment
from lambdanet.training.image_bytes import Decoded, Encoded


def of_recipe(recipe: Recipe) -> Preprocessing:
    """Returns what evaluation does to the images of a recipe.

    The evaluation data and the exported SavedModel both call this one object, so that they cannot differ.
    """
    return Preprocessing(
        recipe.input_size, recipe.mean, recipe.std, recipe.crop_fraction, recipe.interpolation
    )


def for_training(image: Encoded | Decoded, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns one image as a model in training takes it: changed at random as the recipe says, normalised.

    Args:
      image: a file, or pixels.
      recipe: tells the size, the changes, and the normalisation.
      seed: int64 [2]; the same seed gives the same image.

    Returns:
      float32 [input_size, input_size, len(mean)].
    """
    prepare = of_recipe(recipe)
    pixels = augment.VIEWS[recipe.augmentation](image, recipe.input_size, prepare.square, seed)
    if recipe.randaugment_layers:
        seed = tf.random.fold_in(seed, 2)
        pixels = augment.rand_augment(pixels, recipe.randaugment_layers, recipe.randaugment_magnitude, seed)
    return prepare.normalise(pixels)
