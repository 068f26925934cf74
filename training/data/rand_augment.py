# SPDX-License-Identifier: Apache-2.0
"""RandAugment (Cubuk et al. 2019), random operations on an image: the policies of Model Garden and of timm.

Model Garden has a `magnitude_std`, too, but its deviation is 1 whatever the value, and `tf.function` cannot
trace it. The policy of timm takes the operations of Model Garden that accept tensors as magnitudes.
"""

import itertools
import math
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import MAX_MAGNITUDE
from lambdanet.training.data import augment
from lambdanet.training.data.augment import derive_seed

# Pixels at magnitude 10. The papers have no value; Model Garden's classifiers use this one.
TRANSLATION = 10.0

# The policy of timm, at its largest magnitude.
MAX_TURN = math.pi / 6  # radians
MAX_SHEAR = 0.3  # pixels per pixel
MAX_SHIFT = 0.45  # of the size
MAX_BLEND = 0.9  # the change of a factor that is 1 in an unchanged image, and never below MIN_FACTOR
MIN_FACTOR = 0.1

# Image uint8 [h, w, 3] or [h, w, 1], recipe, seed int64 [2] -> uint8 [h, w, 3].
Policy = Callable[[tf.Tensor, Recipe, tf.Tensor], tf.Tensor]


class Strength(NamedTuple):
    """The strength of an operation, and the color of pixels that it takes from outside of the image."""

    level: tf.Tensor  # from 0 to 1
    signed: tf.Tensor  # the level with a random sign
    fill: tf.Tensor  # float32 [3] in 0..255


Operation = Callable[[tf.Tensor, Strength], tf.Tensor]  # uint8 [h, w, 3] -> uint8 [h, w, 3]


def model_garden(pixels: tf.Tensor, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image after RandAugment as in Model Garden, with operations of one magnitude."""
    layers, magnitude = recipe.randaugment_layers, recipe.randaugment_magnitude
    policy = _model_garden().RandAugment(layers, magnitude, translate_const=TRANSLATION)
    image = tf.broadcast_to(pixels, [*pixels.shape[:2], 3])
    with mock.patch.object(_model_garden(), "tf", _SeededTensorFlow(seed)):
        augmented = policy.distort(image)
    return tf.ensure_shape(augmented, image.shape)


def timm(pixels: tf.Tensor, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image after RandAugment as in timm, such as its `rand-m7-mstd0.5-inc1`.

    Each of `randaugment_layers` operations is left out in half of the cases. Its magnitude is drawn from a
    normal distribution about `randaugment_magnitude` with the deviation `randaugment_std`, clipped to 0..10,
    and changes the image more the larger it is (`inc1`). Pixels from outside of the image have the recipe's
    mean color. What differs: the interpolation is bilinear, where timm takes bicubic in half of the cases.
    """
    fill = tf.round([255 * mean for mean in recipe.mean])
    image = tf.broadcast_to(pixels, [*pixels.shape[:2], 3])
    for layer in range(recipe.randaugment_layers):
        choice, side = tf.unstack(tf.random.stateless_uniform([2], derive_seed(seed, 2 * layer)))
        deviation = recipe.randaugment_std * tf.random.stateless_normal([], derive_seed(seed, 2 * layer + 1))
        magnitude = tf.clip_by_value(recipe.randaugment_magnitude + deviation, 0.0, MAX_MAGNITUDE)
        level = magnitude / MAX_MAGNITUDE
        strength = Strength(level, tf.where(side < 0.5, -level, level), fill)
        branches = [partial(operation, image, strength) for operation in OPERATIONS.values()]
        chosen = tf.cast(choice * 2 * len(branches), tf.int32)  # in half of the cases, none
        changed = tf.switch_case(chosen, branches, default=partial(tf.identity, image))
        image = tf.ensure_shape(changed, image.shape)
    return image


POLICIES: dict[str, Policy] = {"model_garden": model_garden, "timm": timm}


def _rotate(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    height, width, _ = image.shape
    cosine, sine = tf.cos(MAX_TURN * strength.signed), tf.sin(MAX_TURN * strength.signed)
    matrix, center = ((cosine, -sine), (sine, cosine)), ((width - 1) / 2, (height - 1) / 2)
    return _warp(image, strength.fill, matrix, center)


def _shear(x: float, y: float) -> Operation:
    """Returns the operation that shears along x or y, about the corner of the image."""

    def sheared(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        slope = MAX_SHEAR * strength.signed
        return _warp(image, strength.fill, ((1.0, x * slope), (y * slope, 1.0)), (-0.5, -0.5))

    return sheared


def _translate(x: float, y: float) -> Operation:
    """Returns the operation that shifts along x or y."""

    def translated(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        height, width, _ = image.shape
        part = MAX_SHIFT * strength.signed
        shift = (x * part * width, y * part * height)
        return _warp(image, strength.fill, ((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0), shift)

    return translated


def _warp(image: tf.Tensor, fill: tf.Tensor, *transformation: Any) -> tf.Tensor:
    """Returns the image after `augment.warp`, over a color instead of black."""
    return _rounded(augment.warp(tf.cast(image, tf.float32) - fill, *transformation) + fill)


def _blend(background: Callable[[tf.Tensor], tf.Tensor]) -> Operation:
    """Returns the operation that moves the image towards its background, or away from it."""

    def blended(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        levels, factor = tf.cast(image, tf.float32), tf.maximum(MIN_FACTOR, 1 + MAX_BLEND * strength.signed)
        return _rounded(augment.blend(levels, background(levels), factor))

    return blended


def _smooth(levels: tf.Tensor) -> tf.Tensor:
    """Returns means of 3x3 pixels, in which the center counts five times; the border stays, as in Pillow."""
    height, width, _ = levels.shape
    means = (9 * tf.nn.avg_pool2d(levels[tf.newaxis], 3, 1, "SAME")[0] + 4 * levels) / 13
    return tf.where(augment.rectangle(levels.shape, (1.0, 1.0), (height - 2.0, width - 2.0)), means, levels)


def _posterize(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    """Returns the image with 4 bits per level, down to 1."""
    step = 2 ** (4 + _whole(tf.minimum(4 * strength.level, 3.0)))
    return tf.cast(_whole(image) // step * step, tf.uint8)


def _solarize(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    """Returns the image with its brightest levels inverted: none, down to all."""
    return tf.cast(_model_garden().solarize(_whole(image), 256 - _whole(256 * strength.level)), tf.uint8)


def _solarize_add(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    """Returns the image with its darker half up to 110 levels brighter."""
    return _model_garden().solarize_add(image, _whole(110 * strength.level))


# The operations of timm's policy, by their names there.
OPERATIONS: dict[str, Operation] = {
    "AutoContrast": lambda image, strength: _model_garden().autocontrast(image),
    "Equalize": lambda image, strength: _model_garden().equalize(image),
    "Invert": lambda image, strength: _model_garden().invert(image),
    "Rotate": _rotate,
    "PosterizeIncreasing": _posterize,
    "SolarizeIncreasing": _solarize,
    "SolarizeAdd": _solarize_add,
    "ColorIncreasing": _blend(augment.gray),
    "ContrastIncreasing": _blend(augment.mean_gray),
    "BrightnessIncreasing": _blend(tf.zeros_like),
    "SharpnessIncreasing": _blend(_smooth),
    "ShearX": _shear(1.0, 0.0),
    "ShearY": _shear(0.0, 1.0),
    "TranslateXRel": _translate(1.0, 0.0),
    "TranslateYRel": _translate(0.0, 1.0),
}


def _whole(numbers: tf.Tensor) -> tf.Tensor:
    return tf.cast(numbers, tf.int64)


def _rounded(levels: tf.Tensor) -> tf.Tensor:
    return tf.cast(levels + 0.5, tf.uint8)


def _model_garden() -> Any:
    """Imports Model Garden's augmentation without its warnings; this takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.vision.ops import augment
    return augment


class _SeededTensorFlow:
    """TensorFlow with a stateless `random.uniform`: each call derives its own seed.

    Model Garden takes no seed, and its random operations have a state, so in a parallel `map` two runs would
    read different images.
    """

    def __init__(self, seed: tf.Tensor):
        calls = itertools.count()

        def uniform(shape: Any, minval: Any = 0, maxval: Any = 1, dtype: tf.DType = tf.float32) -> tf.Tensor:
            return tf.random.stateless_uniform(shape, derive_seed(seed, next(calls)), minval, maxval, dtype)

        self.random = types.SimpleNamespace(uniform=uniform)

    def __getattr__(self, name: str) -> Any:
        return getattr(tf, name)
