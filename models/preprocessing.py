# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of pictures for a trained model, the same as in its training."""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import tensorflow as tf

from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError, check_count, check_known, invalid
from lambdanet.models.weights import pretrained, tensor_files, weight_files

BILINEAR, BICUBIC = "bilinear", "bicubic"
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
    side = tf.cast(tf.round(crop_fraction * tf.cast(tf.minimum(height, width), tf.float32)), tf.int32)
    side = tf.maximum(side, 1)
    top, left = (height - side) // 2, (width - side) // 2
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
    pixels = tf.reshape(pixels, tf.concat([shape[:-3], [size, size], shape[-1:]], axis=0))
    return tf.ensure_shape(pixels, [*images.shape[:-3], size, size, images.shape[-1]])


SQUARES = {BILINEAR: central_square, BICUBIC: pillow_square}


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a model's pictures; call it with uint8 pictures, no others.

    Attributes:
      input_size: height and width of the result, in pixels.
      mean: the mean of each channel, for pixels in 0..1.
      std: the standard deviation of each channel, for pixels in 0..1.
      crop_fraction: the part of the shorter side that the central crop keeps, in (0, 1].
      interpolation: one of `SQUARES`: "bilinear" crops and then resizes, "bicubic" resizes as Pillow does and
        then crops.

    Raises:
      InputError: a value is out of range.

    Example:
      >>> preprocess = preprocess_for("lambda_resnet50ts")
      >>> preprocess(tf.zeros([300, 400, 3], tf.uint8)).shape
      TensorShape([256, 256, 3])
    """

    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float = 1.0
    interpolation: str = BILINEAR

    def __post_init__(self) -> None:
        mean, std = self.mean, self.std
        check_count("input_size", self.input_size)
        if len(mean) not in (1, 3) or len(std) != len(mean) or min(std) <= 0:
            raise invalid("(mean, std)", "3 numbers each or 1, with std above 0", (mean, std))
        if not 0 < self.crop_fraction <= 1:
            raise invalid("crop_fraction", "above 0 and at most 1", self.crop_fraction)
        check_known("interpolation", self.interpolation, SQUARES)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Returns float32 [..., input_size, input_size, len(mean)] for uint8 pictures [..., h, w, c].

        A single channel c is repeated if the mean has more. The range of other types is not known: floats may
        be in 0..1 or 0..255, and 16 bits may hold 12.

        Raises:
          InputError: the pictures are not uint8, or c differs; InvalidArgumentError, if c was not known.
        """
        images, accepted = tf.convert_to_tensor(images), sorted({1, len(self.mean)})
        if images.dtype != tf.uint8:
            hint = "tf.image.convert_image_dtype(images, tf.uint8) converts floats in 0..1 and full 16 bits"
            raise invalid("the type of pictures", "uint8", images.dtype.name, hint)
        wanted = f"[..., h, w, c] with c = {' or '.join(map(str, accepted))}"
        if not any(images.shape[-3:].is_compatible_with([None, None, c]) for c in accepted):
            raise invalid("the shape of pictures", wanted, images.shape.as_list())
        if not images.shape[-1:].is_fully_defined():
            message = [f"the shape of pictures must be {wanted}, got", tf.shape(images)]
            is_accepted = tf.reduce_any(tf.shape(images)[-1] == accepted)
            with tf.control_dependencies([tf.debugging.Assert(is_accepted, message)]):
                images = tf.identity(images)
        return self.normalize(self.square(images))

    def square(self, images: tf.Tensor) -> tf.Tensor:
        """Returns float32 pixels in 0..1, [..., input_size, input_size, c], for pictures [..., h, w, c]."""
        return SQUARES[self.interpolation](images, self.input_size, self.crop_fraction)

    def normalize(self, pixels: tf.Tensor) -> tf.Tensor:
        """Returns `(pixels - mean) / std` for pixels in 0..1."""
        return (pixels - tf.constant(self.mean, tf.float32)) / tf.constant(self.std, tf.float32)


def preprocess_for(
    model: str, weights: str | Path = pretrained_weights.ALIAS, input_size: int | None = None
) -> Preprocessing:
    """Returns the preprocessing for a model with trained weights.

    Args:
      model: a name of `list_models()`.
      weights: the weights, as for `create_model`.
      input_size: the side of the images, in pixels; default: the size of the weights; for published
        ones, the size that their accuracy was measured at.

    Raises:
      InputError: the model has no such weights, they have no preprocessing, or `input_size` is not positive.
      ConnectionError: weights of a repository are not in the cache and cannot be fetched.

    Example:
      >>> preprocess = preprocess_for("haloregnetz_b")
      >>> preprocess(tf.zeros([2, 300, 400, 3], tf.uint8)).shape
      TensorShape([2, 224, 224, 3])
    """
    if weights == pretrained_weights.ALIAS or pretrained_weights.find(model, str(weights)):
        found = pretrained_weights.get(model, str(weights))
        values = (found.input_size, found.mean, found.std, found.crop_fraction, found.interpolation)
        preprocessing = Preprocessing(*values)
    else:
        from lambdanet.models import zoo  # not at the top: pictures are also prepared without a model

        path = pretrained.locate(model, weights, partial(zoo.create_model, model))
        preprocessing = of_weights(path)
    return preprocessing if input_size is None else dataclasses.replace(preprocessing, input_size=input_size)


def of_weights(path: Path) -> Preprocessing:
    """Returns the preprocessing in the metadata of a file of weights.

    Raises:
      InputError: the file has none, or is damaged.
    """
    metadata = {} if path.name.endswith(weight_files.H5) else tensor_files.metadata_of(path)
    preprocessing = from_metadata(metadata)
    if preprocessing is None:
        raise invalid("weights", "a file whose metadata has input_size, mean and std", str(path))
    return preprocessing


def from_metadata(metadata: Mapping[str, str]) -> Preprocessing | None:
    """Returns the preprocessing in the metadata of weights, or None if there is none.

    Raises:
      InputError: it cannot be read.
    """
    if not {"input_size", "mean", "std"} <= metadata.keys():
        return None
    try:
        return Preprocessing(
            int(metadata["input_size"]),
            _numbers(metadata["mean"]),
            _numbers(metadata["std"]),
            float(metadata.get("crop_fraction", 1)),
            metadata.get("interpolation", BILINEAR),
        )
    except ValueError as error:
        raise InputError(f"the metadata of the weights cannot be used: {error}") from None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


def bicubic(
    images: tf.Tensor, new_size: tuple[tf.Tensor, tf.Tensor], begin: tuple[tf.Tensor, tf.Tensor], size: int
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


def _resample(pixels: tf.Tensor, new_length: tf.Tensor, begin: tf.Tensor, size: int) -> tf.Tensor:
    """Resamples the first axis: [n, ...] -> int32 [size, ...]."""
    shape = tf.shape(pixels)
    positions, weights = _taps(shape[0], new_length, begin, size)

    def add(tap: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        weight = tf.reshape(weights[:, tap], [size, 1, 1, 1])
        return tap + 1, total + weight * tf.cast(tf.gather(pixels, positions[:, tap]), tf.int32)

    half = tf.fill(tf.concat([[size], shape[1:]], axis=0), 1 << (BITS - 1))
    _, total = tf.while_loop(
        lambda tap, _: tap < tf.shape(weights)[1],
        add,
        (0, half),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([size, *pixels.shape[1:]])),
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
