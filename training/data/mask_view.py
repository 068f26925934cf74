# SPDX-License-Identifier: Apache-2.0
"""The views of pictures and masks in the task `segmentation`, for each `augmentation` of a recipe.

Pictures keep their size; training sees a square of them. One transformation makes a view: crop, flip, scale
and rotation. The picture is interpolated, and of its mask the nearest pixel is taken. Outside of the picture,
the view is black and has no class.
"""

from typing import NamedTuple

import tensorflow as tf

from lambdanet.training.data.augment import MAX_TURN, MAX_ZOOM, warp
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
    pixels: tf.Tensor, mask: tf.Tensor, size: int, augmentation: str, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a view of a picture and of its mask, uint8 [size, size, c] and [size, size].

    Args:
      pixels: the picture, uint8 [h, w, c].
      mask: its mask, uint8 [h, w], of the same size.
      size: the side of the view, in pixels.
      augmentation: a key of `LIMITS`.
      seed: int64 [2]; the same seed gives the same view.
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
    # In whole pixels, so that a view without a scale is not interpolated.
    corner = tf.round((sides - size + limits.shift * free * tf.stack(place)) / 2)
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
