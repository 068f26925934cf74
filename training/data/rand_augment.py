# SPDX-License-Identifier: Apache-2.0
"""RandAugment (Cubuk et al. 2019), random operations on an image: the policies of Model Garden and of timm.

Pixels equal Model Garden's, whose own policy has no seed per image. Its `magnitude_std` is left out:
there, the deviation is 1 whatever the value.
"""

import math
from collections.abc import Callable
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

# The policy of timm, at its largest magnitude; Model Garden's has the same shear.
MAX_ROTATION = math.pi / 6  # radians
MAX_SHEAR = 0.3  # pixels per pixel
MAX_TRANSLATION = 0.45  # of the size
# The change of a factor that is 1 in an unchanged image, and never below MIN_FACTOR.
MAX_BLEND = 0.9
MIN_FACTOR = 0.1


class Strength(NamedTuple):
    """The strength of a layer's operations, and how its policy moves and rounds pixels.

    Attributes:
      level: the magnitude, as a part of 10; a float, or a scalar float32.
      sign: a function of the number of a draw that returns -1 or 1.
      factor: the factor of `augment.blend`.
      shifts: the translations along x and y, in pixels.
      seed: int64 [2], for the place of Model Garden's square.
      corner: the x and y of the point that a shear keeps.
      interpolation, fill_mode: arguments of `augment.warp`.
      fill: the color of pixels from outside of the image, in 0..255, for the `fill_mode` CONSTANT.
      rounding: the number that is added before blended levels are cut to integers.
    """

    level: Any
    sign: Callable[[int], tf.Tensor]
    factor: Any
    shifts: tuple[Any, Any]
    seed: Any = None
    corner: tuple[float, float] = (0.0, 0.0)
    interpolation: str = "NEAREST"
    fill_mode: str = "REFLECT"
    fill: Any = 0.0
    rounding: float = 0.0


# uint8 [h, w, 3] -> uint8 [h, w, 3]
Operation = Callable[[tf.Tensor, Strength], tf.Tensor]


def model_garden(pixels: tf.Tensor, recipe: Recipe, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image after RandAugment as in Model Garden, with operations of one magnitude."""
    image = tf.broadcast_to(pixels, [*pixels.shape[:2], 3])
    level = recipe.randaugment_magnitude / 10
    shift = MAX_PIXELS * level
    for _ in range(recipe.randaugment_layers):
        sign = partial(_draw_sign, seed)
        strength = Strength(level, sign, 1.8 * level + 0.1, (shift, shift), seed)
        drawn = tf.random.stateless_uniform(
            [], derive_seed(seed, 0), 0, len(MODEL_GARDEN) + 1, tf.int32
        )
        image = _apply_one(MODEL_GARDEN, drawn, image, strength)
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
        sign = tf.where(side < 0.5, -1.0, 1.0)
        strength = timm_strength(magnitude / MAX_MAGNITUDE, sign, image, fill)
        # In half of the cases, none.
        drawn = tf.cast(choice * 2 * len(TIMM), tf.int32)
        image = _apply_one(TIMM, drawn, image, strength)
    return image


def timm_strength(
    level: tf.Tensor, sign: tf.Tensor, image: tf.Tensor, fill: tf.Tensor
) -> Strength:
    """Returns the strength of all operations of timm at a level with a sign."""
    height, width, _ = image.shape
    shift = MAX_TRANSLATION * level
    return Strength(
        level,
        lambda draw: sign,
        tf.maximum(MIN_FACTOR, 1 + MAX_BLEND * (sign * level)),
        (shift * width, shift * height),
        corner=(-0.5, -0.5),
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
        fill=fill,
        rounding=0.5,
    )


def _apply_one(
    operations: dict[str, Operation],
    drawn: tf.Tensor,
    image: tf.Tensor,
    strength: Strength,
) -> tf.Tensor:
    branches = [
        partial(operation, image, strength) for operation in operations.values()
    ]
    changed = tf.switch_case(drawn, branches, default=partial(tf.identity, image))
    return tf.ensure_shape(changed, image.shape)


def _draw_sign(seed: tf.Tensor, draw: int) -> tf.Tensor:
    number = tf.random.stateless_uniform([], derive_seed(seed, draw))
    return tf.where(number < 0.5, -1.0, 1.0)


def _autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Returns the image with the levels of each channel stretched to 0..255."""
    levels = tf.cast(image, tf.float32)
    # Along one axis after the other, TensorFlow takes a tenth of the time.
    low = tf.reduce_min(tf.reduce_min(levels, 0), 0)
    high = tf.reduce_max(tf.reduce_max(levels, 0), 0)
    scale = tf.where(high > low, 255.0 / (high - low), 1.0)
    offset = tf.where(high > low, low * scale, 0.0)
    width = image.shape[1]
    stretched = levels * augment.row(scale, width) - augment.row(offset, width)
    return tf.cast(tf.clip_by_value(stretched, 0.0, 255.0), tf.uint8)


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
    """Returns the image with levels that are multiples of a step, a power of 2."""
    return image & tf.cast(256 - step, tf.uint8)


def _solarize(image: tf.Tensor, threshold: Any) -> tf.Tensor:
    """Returns the image with the levels from a threshold on inverted."""
    darker = tf.cast(image, tf.int32) < threshold
    return augment.choose(darker, image, 255 - image)


def _solarize_add(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    """Returns the image with its darker half brighter."""
    brighter = tf.minimum(tf.cast(image, tf.int32) + _whole(110 * strength.level), 255)
    return augment.choose(image < 128, tf.cast(brighter, tf.uint8), image)


def _blend(background: Callable[[tf.Tensor], tf.Tensor]) -> Operation:
    """Returns the operation that moves an image towards its background, or away from it."""

    def blended(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        levels = tf.cast(image, tf.float32)
        other = tf.cast(background(image), tf.float32)
        result = augment.blend(levels, other, strength.factor)
        return tf.cast(result + strength.rounding, tf.uint8)

    return blended


def _smooth(image: tf.Tensor) -> tf.Tensor:
    """Returns means of 3x3 pixels, in which the center counts five times; the border stays, as in Pillow."""
    levels = tf.cast(image, tf.float32)
    # Rounded as by `tf.nn.avg_pool2d`, which takes twenty times as long.
    means = _sum_3x3(levels, levels) / 9
    return _with_border((9 * means + 4 * levels[1:-1, 1:-1]) / 13, levels)


def _smooth_whole(image: tf.Tensor) -> tf.Tensor:
    """Returns the same, cut to integers as in Model Garden, whose convolution adds in the same order."""
    levels = tf.cast(image, tf.float32)
    means = _sum_3x3(levels * (1 / 13), levels * (5 / 13))
    means = tf.cast(tf.clip_by_value(means, 0.0, 255.0), tf.uint8)
    return _with_border(means, image)


def _sum_3x3(image: tf.Tensor, centers: tf.Tensor) -> tf.Tensor:
    """Returns the sums of the 3x3 pixels about each one that is not on the border, [h - 2, w - 2, c].

    Args:
      image: float32 [h, w, c].
      centers: the same, of which the pixels in the middle are.
    """
    height, width, _ = image.shape
    total: Any = 0
    for top in range(3):
        for left in range(3):
            pixels = centers if top == left == 1 else image
            total += pixels[top : top + height - 2, left : left + width - 2]
    return total


def _with_border(inner: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of an image on its border, and others [h - 2, w - 2, c] within it."""
    middle = tf.concat([image[1:-1, :1], inner, image[1:-1, -1:]], 1)
    return tf.concat([image[:1], middle, image[-1:]], 0)


def _turn(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    """Returns the image turned in degrees, with Model Garden's order of the terms."""
    matrix = _rotation(strength.sign(5) * (30 * strength.level) * (math.pi / 180))
    x, y = _center(image)
    shift = [
        across - (p * x + q * y) for across, (p, q) in zip((x, y), matrix, strict=True)
    ]
    return _warp(image, strength, matrix, (0.0, 0.0), shift)


def _rotate(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    matrix = _rotation(strength.sign(5) * (MAX_ROTATION * strength.level))
    return _warp(image, strength, matrix, _center(image))


def _rotation(angle: tf.Tensor) -> Any:
    cosine = tf.cos(angle)
    sine = tf.sin(angle)
    return ((cosine, -sine), (sine, cosine))


def _center(image: tf.Tensor) -> tuple[float, float]:
    """Returns the x and y of the center of an image, in pixels."""
    height, width, _ = image.shape
    return (width - 1) / 2, (height - 1) / 2


def _shear(x: float, y: float, draw: int) -> Operation:
    """Returns the operation that shears along x or y, about the corner of the image."""

    def sheared(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        slope = strength.sign(draw) * (MAX_SHEAR * strength.level)
        matrix = ((1.0, x * slope), (y * slope, 1.0))
        return _warp(image, strength, matrix, strength.corner)

    return sheared


def _translate(x: float, y: float, draw: int) -> Operation:
    """Returns the operation that shifts along x or y."""

    def translated(image: tf.Tensor, strength: Strength) -> tf.Tensor:
        sign = strength.sign(draw)
        shift = (x * sign * strength.shifts[0], y * sign * strength.shifts[1])
        return _warp(image, strength, ((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0), shift)

    return translated


def _warp(image: tf.Tensor, strength: Strength, *transformation: Any) -> tf.Tensor:
    """Returns the image after `augment.warp`, over a color instead of black."""
    is_nearest = strength.interpolation == "NEAREST"
    if is_nearest:
        # Each pixel is one number of four bytes, and moves once instead of once for each channel.
        pixels = tf.bitcast(tf.pad(image, [[0, 0], [0, 0], [0, 1]]), tf.int32)
        pixels = pixels[..., tf.newaxis]
    else:
        pixels = tf.cast(image, tf.float32) - strength.fill
    moved = augment.warp(  # type: ignore[misc]
        pixels,
        *transformation,
        interpolation=strength.interpolation,
        fill_mode=strength.fill_mode,
    )
    if is_nearest:
        return tf.bitcast(moved, tf.uint8)[..., 0, :3]
    return tf.cast(moved + strength.fill + 0.5, tf.uint8)


def _cut_out(image: tf.Tensor, strength: Strength) -> tf.Tensor:
    """Returns the image with a gray square about a random pixel."""
    radius = int(MAX_RADIUS * strength.level)
    center = [
        tf.random.stateless_uniform(
            [], derive_seed(strength.seed, draw), 0, size, tf.int32
        )
        for draw, size in ((22, image.shape[0]), (23, image.shape[1]))
    ]
    begins = tf.cast(tf.stack(center) - radius, tf.float32)
    square = augment.rectangle(image.shape, begins, (2.0 * radius, 2.0 * radius))
    return augment.choose(square, tf.constant(GRAY, tf.uint8), image)


def _whole(numbers: Any) -> tf.Tensor:
    """Returns numbers cut to integers; a Python float is not rounded to float32 before."""
    return tf.cast(tf.convert_to_tensor(numbers, dtype_hint=tf.float64), tf.int32)


# The operations of both policies: first and last in their order.
LEVELS: dict[str, Operation] = {
    "AutoContrast": lambda image, _: _autocontrast(image),
    "Equalize": lambda image, _: _equalize(image),
    "Invert": lambda image, _: 255 - image,
}
MOVES: dict[str, Operation] = {
    "ShearX": _shear(1.0, 0.0, draw=13),
    "ShearY": _shear(0.0, 1.0, draw=15),
    "TranslateX": _translate(1.0, 0.0, draw=17),
    "TranslateY": _translate(0.0, 1.0, draw=19),
}

# Model Garden's operations, by their names there. Beyond magnitude 10, some of them wrap as its bytes do.
MODEL_GARDEN: dict[str, Operation] = {
    **LEVELS,
    "Rotate": _turn,
    "Posterize": lambda image, strength: _posterize(
        image, 2 ** min((8 - int(4 * strength.level)) % 256, 7)
    ),
    "Solarize": lambda image, strength: _solarize(
        image, int(256 * strength.level) % 256
    ),
    "Color": _blend(tf.image.rgb_to_grayscale),
    "Contrast": lambda image, strength: tf.image.adjust_contrast(
        image, strength.factor
    ),
    "Brightness": _blend(tf.zeros_like),
    "Sharpness": _blend(_smooth_whole),
    **MOVES,
    "Cutout": _cut_out,
    "SolarizeAdd": _solarize_add,
}

# The operations of timm's policy.
TIMM: dict[str, Operation] = {
    **LEVELS,
    "Rotate": _rotate,
    "Posterize": lambda image, strength: _posterize(
        image, 2 ** (4 + _whole(tf.minimum(4 * strength.level, 3.0)))
    ),
    "Solarize": lambda image, strength: _solarize(
        image, 256 - _whole(256 * strength.level)
    ),
    "SolarizeAdd": _solarize_add,
    "Color": _blend(augment.gray),
    "Contrast": _blend(augment.mean_gray),
    "Brightness": _blend(tf.zeros_like),
    "Sharpness": _blend(_smooth),
    **MOVES,
}

# Image uint8 [h, w, 3] or [h, w, 1], recipe, seed int64 [2] -> uint8 [h, w, 3].
POLICIES = {"model_garden": model_garden, "timm": timm}
