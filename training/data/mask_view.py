# SPDX-License-Identifier: Apache-2.0
"""The views of pictures and masks in the task `segmentation`, for each `augmentation` of a recipe.

Pictures keep their size; training sees a square of them. One transformation makes a view: crop, flip, scale
and rotation. The picture is interpolated, and of its mask the nearest pixel is taken. Outside of the picture,
the view is black and has no class.

A share of views may be around a pixel of a class but the first (`draw_pixel`). It is in the middle of the
view, up to half a pixel; nearer to a border of the picture, the view moves inwards until it ends at the
border, and the pixel is elsewhere in it. Corners of a turned view may then be outside of the picture.
"""

from typing import NamedTuple

import tensorflow as tf

from lambdanet.training.data.augment import MAX_TURN, MAX_ZOOM, derive_seed, warp
from lambdanet.training.data.class_names import IGNORED


class Limits(NamedTuple):
    """The random changes of an augmentation.

    Attributes:
      scale: the largest factor by which the picture becomes larger or smaller.
      turn: the largest angle, in radians.
      shift: the largest distance of the view from the center, as a part of that to the border.
      flips: whether half of the views are flipped.
    """

    scale: float = 1.0
    turn: float = 0.0
    shift: float = 0.0
    flips: bool = False


LIMITS = {
    "none": Limits(),
    "flip": Limits(flips=True),
    "padded_crop_flip": Limits(shift=1.0, flips=True),
    "crop_flip": Limits(2.0, shift=1.0, flips=True),
    "affine": Limits(1 + MAX_ZOOM, MAX_TURN, shift=1.0),
}


def view(
    pixels: tf.Tensor,
    mask: tf.Tensor,
    size: int,
    augmentation: str,
    seed: tf.Tensor,
    foreground_share: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a view of a picture and of its mask, uint8 [size, size, c] and [size, size].

    Args:
      pixels: the picture, uint8 [h, w, c].
      mask: its mask, uint8 [h, w], of the same size.
      size: the side of the view, in pixels.
      augmentation: a key of `LIMITS`.
      seed: int64 [2]; the same seed gives the same view.
      foreground_share: the probability of a view around a pixel of a class but the first, where there is one.
    """
    limits = LIMITS[augmentation]
    zoom, turn, mirror, *place = tf.unstack(
        tf.random.stateless_uniform([5], seed, -1.0, 1.0)
    )
    scale = limits.scale**zoom
    sign = tf.where(limits.flips & (mirror < 0), -1.0, 1.0)
    angle = limits.turn * turn
    cosine = tf.cos(angle) / scale
    sine = tf.sin(angle) / scale
    height, width = tf.unstack(tf.cast(tf.shape(mask), tf.float32))
    sides = tf.stack([width, height])
    free = tf.maximum(sides - size / scale, 0.0)
    # Twice the way of its middle from that of the picture.
    way = limits.shift * free * tf.stack(place)
    if foreground_share:
        # The side of the largest upright square in the view.
        side = size / scale**2 / (cosine + tf.abs(sine))
        reach = tf.maximum(sides - side, 0.0)
        is_drawn = (
            tf.random.stateless_uniform([], derive_seed(seed, 0)) < foreground_share
        )
        has_class = tf.reduce_any((mask > 0) & (mask < IGNORED))

        def around_pixel() -> tf.Tensor:
            pixel = tf.cast(draw_pixel(mask, seed), tf.float32)
            return tf.clip_by_value(2 * pixel + 1 - sides, -reach, reach)

        way = tf.cond(is_drawn & has_class, around_pixel, lambda: way)
    # In whole pixels, so that a view without a scale is not interpolated.
    corner = tf.round((sides - size + way) / 2)
    center = (size - 1) / 2

    def read(image: tf.Tensor, interpolation: str) -> tf.Tensor:
        return warp(
            image,
            ((sign * cosine, -sine), (sign * sine, cosine)),
            (center, center),
            tf.unstack(corner),
            interpolation,
            size=size,
        )

    picture = read(tf.cast(pixels, tf.float32), "BILINEAR")
    # Pixels without a class are 0, as those outside.
    classes = read(IGNORED - mask[..., tf.newaxis], "NEAREST")
    return tf.cast(picture + 0.5, tf.uint8), IGNORED - classes[..., 0]


def draw_pixel(mask: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns x and y of a random pixel of a random class but the first, int64 [2].

    Each class that is in the mask is drawn alike, and each pixel of it: first its row, by their numbers of
    such pixels, then its column.

    Args:
      mask: the classes, uint8 [h, w], one of them at least neither 0 nor 255.
      seed: int64 [2].
    """
    counts = tf.math.bincount(tf.cast(mask, tf.int32), minlength=IGNORED, axis=-1)
    counts = counts[:, 1:IGNORED]  # [h, 254], of each row
    number = _draw(tf.reduce_any(counts > 0, axis=0), derive_seed(seed, 1))
    row = _draw(counts[:, number], derive_seed(seed, 2))
    is_chosen = mask[row] == tf.cast(number + 1, tf.uint8)
    return tf.stack([_draw(is_chosen, derive_seed(seed, 3)), row])


def _draw(weights: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random place in weights [n], with probabilities in their ratio, int64."""
    logits = tf.math.log(tf.cast(weights, tf.float32))
    return tf.random.stateless_categorical([logits], 1, seed)[0, 0]
