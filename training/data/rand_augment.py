# SPDX-License-Identifier: Apache-2.0
"""RandAugment (Cubuk et al. 2019), random operations on an image: the policies of Model Garden and of timm.

Pixels equal Model Garden's, whose own policy has no seed per image. Its `magnitude_std` is left out:
there, the deviation is 1 whatever the value.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import MAX_MAGNITUDE
from lambdanet.training.data import augment
from lambdanet.training.data.augment import derive_seed

# Model Garden's policy. The papers have no value for translations; its classifiers use this one.
MAX_PIXELS = 10.0  # of a translation at magnitude 10
MAX_RADIUS = 40  # half of the side of the gray square, at magnitude 10
GRAY = 128
# Random numbers per layer; some are not used, but each has its place in the order of Model Garden.
DRAWS = 24

# The policy of timm, at its largest magnitude.
MAX_TURN = math.pi / 6  # radians
MAX_SHEAR = 0.3  # pixels per pixel
MAX_SHIFT = 0.45  # of the size
# The change of a factor that is 1 in an unchanged image, and never below MIN_FACTOR.
MAX_BLEND = 0.9
MIN_FACTOR = 0.1

# Image uint8 [h, w, 3] or [h, w, 1], recipe, seed int64 [2] -> uint8 [h, w, 3].
Policy = Callable[[tf.Tensor, Recipe, tf.Tensor], tf.Tensor]


class Strength(NamedTuple):
    """The strength of an operation, and the color of pixels that it takes from outside of the image."""

    level: tf.Tensor  # from 0 to 1
    signed: tf.Tensor  # the level with a random sign
    fill: tf.Tensor  # float32 [3] in 0..255


# uint8 [h, w, 3] -> uint8 [h, w, 3]
Operation = Callable[[tf.Tensor, Strength], tf.Tensor]


def model_garden(pixels: tf.Tensor, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image after RandAugment as in Model Garden, with operations of one magnitude."""
    image = tf.broadcast_to(pixels, [*pixels.shape[:2], 3])
    level = recipe.randaugment_magnitude / 10
    for _ in range(recipe.randaugment_layers):
        branches = [
            partial(operation, image, level, seed)
            for operation in MODEL_GARDEN.values()
        ]
        drawn = tf.random.stateless_uniform(
            [], derive_seed(seed, 0), 0, len(branches) + 1, tf.int32
        )
        image = _apply_one(branches, drawn, image)
        seed = derive_seed(seed, DRAWS - 1)
    return image


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
        choice, side = tf.unstack(
            tf.random.stateless_uniform([2], derive_seed(seed, 2 * layer))
        )
        deviation = recipe.randaugment_std * tf.random.stateless_normal(
            [], derive_seed(seed, 2 * layer + 1)
        )
        magnitude = tf.clip_by_value(
            recipe.randaugment_magnitude + deviation, 0.0, MAX_MAGNITUDE
        )
        level = magnitude / MAX_MAGNITUDE
        strength = Strength(level, tf.where(side < 0.5, -level, level), fill)
        branches = [partial(operation, image, strength) for operation in TIMM.values()]
        # In half of the cases, none.
        drawn = tf.cast(choice * 2 * len(branches), tf.int32)
        image = _apply_one(branches, drawn, image)
    return image


def _apply_one(
    branches: Sequence[Callable[[], tf.Tensor]], drawn: tf.Tensor, image: tf.Tensor
) -> tf.Tensor:
    changed = tf.switch_case(drawn, branches, default=partial(tf.identity, image))
    return tf.ensure_shape(changed, image.shape)


def _autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Returns the image with the levels of each channel stretched to 0..255."""
    levels = tf.cast(image, tf.float32)
    low = tf.reduce_min(levels, (0, 1))
    high = tf.reduce_max(levels, (0, 1))
    scale = tf.math.divide_no_nan(255.0, high - low)
    stretched = tf.clip_by_value(levels * scale - low * scale, 0.0, 255.0)
    return tf.where(high > low, tf.cast(stretched, tf.uint8), image)


def _equalize(image: tf.Tensor) -> tf.Tensor:
    """Returns the image with the levels of each channel spread over 0..255 by their frequency."""

    def equalized(levels: tf.Tensor) -> tf.Tensor:
        counts = tf.math.bincount(levels, minlength=256, maxlength=256)
        step = (tf.size(levels) - counts[tf.reduce_max(levels)]) // 255
        table = tf.minimum(
            (tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1), 255
        )
        return tf.gather(tf.where(step > 0, table, tf.range(256)), levels)

    channels = tf.unstack(tf.cast(image, tf.int32), axis=-1)
    return tf.cast(tf.stack(list(map(equalized, channels)), axis=-1), tf.uint8)


def _posterize(image: tf.Tensor, step: Any) -> tf.Tensor:
    """Returns the image with levels that are multiples of a step."""
    return tf.cast(_whole(image) // step * step, tf.uint8)


def _solarize(image: tf.Tensor, threshold: Any) -> tf.Tensor:
    """Returns the image with the levels from a threshold on inverted."""
    return tf.where(_whole(image) < threshold, image, 255 - image)


def _solarize_add(image: tf.Tensor, addition: Any) -> tf.Tensor:
    """Returns the image with its darker half brighter."""
    return tf.where(
        image < 128, tf.cast(tf.minimum(_whole(image) + addition, 255), tf.uint8), image
    )


def _sharpen(image: tf.Tensor, level: float) -> tf.Tensor:
    """Returns the image, blended with means of 3x3 pixels in which the center counts five times."""
    kernel = tf.tile(
        tf.constant([1, 1, 1, 1, 5, 1, 1, 1, 1], tf.float32, [3, 3, 1, 1]) / 13,
        [1, 1, 3, 1],
    )
    levels = tf.cast(image, tf.float32)[tf.newaxis]
    means = tf.nn.depthwise_conv2d(levels, kernel, [1, 1, 1, 1], "SAME")[0]
    means = tf.cast(tf.clip_by_value(means, 0.0, 255.0), tf.uint8)
    return _enhance(image, tf.where(_inside(image), means, image), level)


def _enhance(image: tf.Tensor, background: tf.Tensor, level: float) -> tf.Tensor:
    """Returns the image moved towards its background, uint8, or, from 5 on, away from it."""
    levels = tf.cast(image, tf.float32)
    background = tf.cast(background, tf.float32)
    return tf.cast(augment.blend(levels, background, 1.8 * level + 0.1), tf.uint8)


def _turn(image: tf.Tensor, degrees: tf.Tensor) -> tf.Tensor:
    x, y = _center(image)
    angle = degrees * (math.pi / 180)
    cosine = tf.cos(angle)
    sine = tf.sin(angle)
    shift = (x - (cosine * x - sine * y), y - (sine * x + cosine * y))
    return _move(image, ((cosine, -sine), (sine, cosine)), shift)


def _move(
    image: tf.Tensor, matrix: Any = ((1.0, 0.0), (0.0, 1.0)), shift: Any = (0.0, 0.0)
) -> tf.Tensor:
    """Returns the image after `augment.warp`, of the nearest pixels and reflected at its borders."""
    return augment.warp(
        image, matrix, (0.0, 0.0), shift, interpolation="NEAREST", fill_mode="REFLECT"
    )


def _signed(value: float, seed: tf.Tensor, draw: int) -> tf.Tensor:
    return tf.where(
        tf.random.stateless_uniform([], derive_seed(seed, draw)) < 0.5, -value, value
    )


def _cut_out(image: tf.Tensor, radius: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image with a gray square about a random pixel."""
    center = [
        tf.random.stateless_uniform([], derive_seed(seed, draw), 0, size, tf.int32)
        for draw, size in ((22, image.shape[0]), (23, image.shape[1]))
    ]
    begins = tf.cast(tf.stack(center) - radius, tf.float32)
    square = augment.rectangle(image.shape, begins, (2.0 * radius, 2.0 * radius))
    return tf.where(square, tf.constant(GRAY, tf.uint8), image)


# Model Garden's operations: functions of the image, the magnitude / 10, and the seed of the layer. Beyond
# magnitude 10, some of them wrap as its bytes do.
MODEL_GARDEN: dict[str, Callable[[tf.Tensor, float, tf.Tensor], tf.Tensor]] = {
    "AutoContrast": lambda image, level, seed: _autocontrast(image),
    "Equalize": lambda image, level, seed: _equalize(image),
    "Invert": lambda image, level, seed: 255 - image,
    "Rotate": lambda image, level, seed: _turn(image, _signed(30 * level, seed, 5)),
    "Posterize": lambda image, level, seed: _posterize(
        image, 2 ** min((8 - int(4 * level)) % 256, 7)
    ),
    "Solarize": lambda image, level, seed: _solarize(image, int(256 * level) % 256),
    "Color": lambda image, level, seed: _enhance(
        image, tf.image.rgb_to_grayscale(image), level
    ),
    "Contrast": lambda image, level, seed: tf.image.adjust_contrast(
        image, 1.8 * level + 0.1
    ),
    "Brightness": lambda image, level, seed: _enhance(
        image, tf.zeros_like(image), level
    ),
    "Sharpness": lambda image, level, seed: _sharpen(image, level),
    "ShearX": lambda image, level, seed: _move(
        image, ((1.0, _signed(0.3 * level, seed, 13)), (0.0, 1.0))
    ),
    "ShearY": lambda image, level, seed: _move(
        image, ((1.0, 0.0), (_signed(0.3 * level, seed, 15), 1.0))
    ),
    "TranslateX": lambda image, level, seed: _move(
        image, shift=(_signed(MAX_PIXELS * level, seed, 17), 0.0)
    ),
    "TranslateY": lambda image, level, seed: _move(
        image, shift=(0.0, _signed(MAX_PIXELS * level, seed, 19))
    ),
    "Cutout": lambda image, level, seed: _cut_out(image, int(MAX_RADIUS * level), seed),
    "SolarizeAdd": lambda image, level, seed: _solarize_add(image, int(110 * level)),
}


def _rotate(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    cosine = tf.cos(MAX_TURN * strength.signed)
    sine = tf.sin(MAX_TURN * strength.signed)
    matrix = ((cosine, -sine), (sine, cosine))
    return _warp(image, strength.fill, matrix, _center(image))


def _shear(x: float, y: float) -> Operation:
    """Returns the operation that shears along x or y, about the corner of the image."""

    def sheared(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        slope = MAX_SHEAR * strength.signed
        return _warp(
            image, strength.fill, ((1.0, x * slope), (y * slope, 1.0)), (-0.5, -0.5)
        )

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
    return _rounded(
        augment.warp(tf.cast(image, tf.float32) - fill, *transformation) + fill
    )


def _blend(background: Callable[[tf.Tensor], tf.Tensor]) -> Operation:
    """Returns the operation that moves the image towards its background, or away from it."""

    def blended(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        levels = tf.cast(image, tf.float32)
        factor = tf.maximum(MIN_FACTOR, 1 + MAX_BLEND * strength.signed)
        return _rounded(augment.blend(levels, background(levels), factor))

    return blended


def _smooth(levels: tf.Tensor) -> tf.Tensor:
    """Returns means of 3x3 pixels, in which the center counts five times; the border stays, as in Pillow."""
    means = (
        9 * tf.nn.avg_pool2d(levels[tf.newaxis], 3, 1, "SAME")[0] + 4 * levels
    ) / 13
    return tf.where(_inside(levels), means, levels)


def _inside(image: tf.Tensor) -> tf.Tensor:
    """Returns whether pixels are not on the border, bool [h, w, 1]."""
    height, width, _ = image.shape
    return augment.rectangle(image.shape, (1.0, 1.0), (height - 2.0, width - 2.0))


# The operations of timm's policy, by their names there.
TIMM: dict[str, Operation] = {
    "AutoContrast": lambda image, strength: _autocontrast(image),
    "Equalize": lambda image, strength: _equalize(image),
    "Invert": lambda image, strength: 255 - image,
    "Rotate": _rotate,
    "PosterizeIncreasing": lambda image, strength: _posterize(
        image, 2 ** (4 + _whole(tf.minimum(4 * strength.level, 3.0)))
    ),
    "SolarizeIncreasing": lambda image, strength: _solarize(
        image, 256 - _whole(256 * strength.level)
    ),
    "SolarizeAdd": lambda image, strength: _solarize_add(
        image, _whole(110 * strength.level)
    ),
    "ColorIncreasing": _blend(augment.gray),
    "ContrastIncreasing": _blend(augment.mean_gray),
    "BrightnessIncreasing": _blend(tf.zeros_like),
    "SharpnessIncreasing": _blend(_smooth),
    "ShearX": _shear(1.0, 0.0),
    "ShearY": _shear(0.0, 1.0),
    "TranslateXRel": _translate(1.0, 0.0),
    "TranslateYRel": _translate(0.0, 1.0),
}


def _center(image: tf.Tensor) -> tuple[float, float]:
    """Returns the x and y of the center of an image, in pixels."""
    height, width, _ = image.shape
    return (width - 1) / 2, (height - 1) / 2


def _whole(numbers: tf.Tensor) -> tf.Tensor:
    return tf.cast(numbers, tf.int64)


def _rounded(levels: tf.Tensor) -> tf.Tensor:
    return tf.cast(levels + 0.5, tf.uint8)
