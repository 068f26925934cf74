# SPDX-License-Identifier: Apache-2.0
"""Square pictures for a model, by TensorFlow; `preprocessing` has the same without it."""

import math

import tensorflow as tf

BITS = 22  # fractional bits of a weight of Pillow's bicubic kernel
REACH = 2.0  # of that kernel on each side, in pixels of the result


def central_square(images: tf.Tensor, size: int, crop_fraction: float) -> tf.Tensor:
    """Crops the central square, then resizes it, as TensorFlow's pipelines do.

    Args:
      images: [..., h, w, c]; h and w may be unknown.
      size: height and width of the result, in pixels.
      crop_fraction: the part of the shorter side that is kept, in (0, 1].

    Returns:
      float32 pixels in 0..1, [..., size, size, c].
    """
    height, width = tf.unstack(tf.shape(images)[-3:-1])
    side = tf.cast(
        tf.round(crop_fraction * tf.cast(tf.minimum(height, width), tf.float32)),
        tf.int32,
    )
    side = tf.maximum(side, 1)
    top = (height - side) // 2
    left = (width - side) // 2
    square = images[..., top : top + side, left : left + side, :]
    return tf.image.resize(square, [size, size], antialias=True) / 255.0


def pillow_square(images: tf.Tensor, size: int, crop_fraction: float) -> tf.Tensor:
    """Resizes the shorter side to size / crop_fraction, then crops the center, as Pillow and timm do.

    Args:
      images: uint8 [..., h, w, c]; h and w may be unknown.
      size: height and width of the result, in pixels.
      crop_fraction: the ratio of `size` to the resized shorter side, in (0, 1].

    Returns:
      float32 pixels in 0..1, in 256 levels, [..., size, size, c].
    """
    shape = tf.shape(images)
    height, width = tf.unstack(shape[-3:-1])
    shorter = math.floor(size / crop_fraction)
    new_size = (
        tf.maximum(shorter, shorter * height // width),
        tf.maximum(shorter, shorter * width // height),
    )
    # Halves are rounded to even, as in Python.
    begin = tuple(tf.cast(tf.round((side - size) / 2), tf.int32) for side in new_size)
    pictures = tf.reshape(images, tf.concat([[-1], shape[-3:]], axis=0))
    pixels = tf.cast(bicubic(pictures, new_size, begin, size), tf.float32) / 255.0
    pixels = tf.reshape(
        pixels, tf.concat([shape[:-3], [size, size], shape[-1:]], axis=0)
    )
    return tf.ensure_shape(pixels, [*images.shape[:-3], size, size, images.shape[-1]])


SQUARES = {"bilinear": central_square, "bicubic": pillow_square}  # by interpolation


def checked_channels(images: tf.Tensor, accepted: list[int], wanted: str) -> tf.Tensor:
    """Returns pictures whose number of channels, not known before, is checked when they are."""
    message = [f"the shape of pictures must be {wanted}, got", tf.shape(images)]
    is_accepted = tf.reduce_any(tf.shape(images)[-1] == accepted)
    with tf.control_dependencies([tf.debugging.Assert(is_accepted, message)]):
        return tf.identity(images)


def bicubic(
    images: tf.Tensor,
    new_size: tuple[tf.Tensor, tf.Tensor],
    begin: tuple[tf.Tensor, tf.Tensor],
    size: int,
) -> tf.Tensor:
    """Resizes pictures by Pillow's bicubic interpolation, bit for bit, and crops a square.

    Pillow resamples along the width and then along the height with Keys' cubic kernel (a = -1/2), which is
    stretched to the pixels of the result if those are larger. It computes in integers: weights with 22
    fractional bits, and 8 bits after each of the two steps. `tf.image.resize` has the same kernel but neither
    rounds nor clips between the steps, so it differs by several gray levels where the first step overshoots.

    Pillow 13 resizes the height first if that removes more than twice as many rows as columns. Earlier
    versions, with which the published networks were trained and measured, never do, nor does this function.

    Args:
      images: uint8 [b, h, w, c]; h and w may be unknown.
      new_size: height and width to resize to, int32 scalars.
      begin: top and left of the square in the resized pictures, int32 scalars.
      size: the side of the square, in pixels.

    Returns:
      int32 in 0..255, [b, size, size, c].
    """
    columns = _resample(tf.transpose(images, [2, 0, 1, 3]), new_size[1], begin[1], size)
    rows = _resample(tf.transpose(columns, [2, 1, 0, 3]), new_size[0], begin[0], size)
    return tf.transpose(rows, [1, 0, 2, 3])


def _resample(
    pixels: tf.Tensor, new_length: tf.Tensor, begin: tf.Tensor, size: int
) -> tf.Tensor:
    """Resamples the first axis: [n, ...] -> int32 [size, ...]."""
    shape = tf.shape(pixels)
    positions, weights = _taps(shape[0], new_length, begin, size)

    def add(tap: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        weight = tf.reshape(weights[:, tap], [size, 1, 1, 1])
        return tap + 1, total + weight * tf.cast(
            tf.gather(pixels, positions[:, tap]), tf.int32
        )

    half = tf.fill(tf.concat([[size], shape[1:]], axis=0), 1 << (BITS - 1))
    _, total = tf.while_loop(
        lambda tap, _: tap < tf.shape(weights)[1],
        add,
        (0, half),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([size, *pixels.shape[1:]]),
        ),
    )
    return tf.clip_by_value(tf.bitwise.right_shift(total, BITS), 0, 255)


def _taps(
    length: tf.Tensor, new_length: tf.Tensor, begin: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The pixels that make up each pixel of the result, and their weights: int32 [size, taps] both."""
    scale = tf.cast(length, tf.float64) / tf.cast(new_length, tf.float64)
    width = tf.maximum(scale, 1.0)
    reach = REACH * width
    centers = (tf.cast(begin + tf.range(size), tf.float64) + 0.5) * scale
    first = tf.maximum(tf.cast(centers - reach + 0.5, tf.int32), 0)[:, tf.newaxis]
    last = tf.minimum(tf.cast(centers + reach + 0.5, tf.int32), length)[:, tf.newaxis]
    positions = first + tf.range(2 * tf.cast(tf.math.ceil(reach), tf.int32) + 1)
    offsets = tf.cast(positions, tf.float64) - centers[:, tf.newaxis] + 0.5
    weights = tf.where(positions < last, _kernel(offsets * (1.0 / width)), 0.0)
    weights = 2.0**BITS * weights / tf.reduce_sum(weights, axis=1, keepdims=True)
    rounded = tf.cast(weights + 0.5 * tf.sign(weights), tf.int32)  # a cast truncates
    return tf.minimum(positions, length - 1), rounded


def _kernel(x: tf.Tensor) -> tf.Tensor:
    """Keys' cubic convolution kernel, a = -1/2."""
    x = tf.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return tf.where(x < 1.0, near, tf.where(x < REACH, far, 0.0))
