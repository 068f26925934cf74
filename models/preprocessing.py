# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of pictures for a trained model, the same as in its training."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanet import backend as K
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core.errors import InputError, check_count, check_known, invalid
from lambdanet.models.weights import pretrained, tensor_files

BILINEAR = "bilinear"
BICUBIC = "bicubic"


def _central_square(images: np.ndarray, size: int, crop_fraction: float) -> np.ndarray:
    """As `tensorflow_squares.central_square`, within 1e-6."""
    height, width = images.shape[-3:-1]
    side = max(
        1, int(np.round(np.float32(crop_fraction) * np.float32(min(height, width))))
    )
    square = _cropped(images, (height - side) // 2, (width - side) // 2, side)
    pixels = _resized(
        square.astype(np.float32), (size, size), Image.Resampling.BILINEAR
    )
    return pixels / np.float32(255)


def _pillow_square(images: np.ndarray, size: int, crop_fraction: float) -> np.ndarray:
    """As `tensorflow_squares.pillow_square`, bit for bit."""
    height, width = images.shape[-3:-1]
    shorter = math.floor(size / crop_fraction)
    new_size = (
        max(shorter, shorter * height // width),
        max(shorter, shorter * width // height),
    )
    resized = _resized(images, new_size, Image.Resampling.BICUBIC)
    top, left = (round((side - size) / 2) for side in new_size)
    return _cropped(resized, top, left, size).astype(np.float32) / np.float32(255)


def _cropped(images: np.ndarray, top: int, left: int, side: int) -> np.ndarray:
    return images[..., top : top + side, left : left + side, :]


def _resized(
    images: np.ndarray, new_size: tuple[int, int], resample: Image.Resampling
) -> np.ndarray:
    """Resizes uint8 or float32 pictures [..., h, w, c] to a height and width, the width first."""
    height, width = new_size
    planes = np.moveaxis(images, -1, -3)  # [..., c, h, w]
    resized = np.empty([*planes.shape[:-2], height, width], images.dtype)
    for index in np.ndindex(planes.shape[:-2]):
        plane = Image.fromarray(planes[index])
        for target in ((width, plane.height), (width, height)):
            plane = plane.resize(target, resample)
        resized[index] = plane
    return np.moveaxis(resized, -3, -1)


SQUARES = {BILINEAR: _central_square, BICUBIC: _pillow_square}


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
      >>> tuple(preprocess(np.zeros([300, 400, 3], "uint8")).shape)
      (256, 256, 3)
    """

    input_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float = 1.0
    interpolation: str = BILINEAR

    def __post_init__(self) -> None:
        mean = self.mean
        std = self.std
        check_count("input_size", self.input_size)
        if len(mean) not in (1, 3) or len(std) != len(mean) or min(std) <= 0:
            raise invalid(
                "(mean, std)", "3 numbers each or 1, with std above 0", (mean, std)
            )
        if not 0 < self.crop_fraction <= 1:
            raise invalid("crop_fraction", "above 0 and at most 1", self.crop_fraction)
        check_known("interpolation", self.interpolation, SQUARES)

    def __call__(self, images: Any) -> Any:
        """Returns float32 [..., input_size, input_size, len(mean)] for uint8 pictures [..., h, w, c].

        The result is a tensor of TensorFlow, or a NumPy array where Keras is on JAX or torch and the pictures
        are no tensor of TensorFlow. A single channel c is repeated if the mean has more. The range of other
        types is not known: floats may be in 0..1 or 0..255, and 16 bits may hold 12.

        Raises:
          InputError: the pictures are not uint8, or c differs; InvalidArgumentError, if c was not known.
        """
        images = _converted(images)
        accepted = sorted({1, len(self.mean)})
        if images.dtype.name != "uint8":
            raise invalid(
                "the type of pictures",
                "uint8",
                images.dtype.name,
                "tf.image.convert_image_dtype(images, tf.uint8) converts floats in 0..1 and full 16 bits, "
                "tf.cast(images, tf.uint8) floats in 0..255",
            )
        wanted = f"[..., h, w, c] with c = {' or '.join(map(str, accepted))}"
        is_ranked = getattr(images.shape, "rank", 0) is not None
        shape = [*images.shape] if is_ranked else [None] * 3
        if len(shape) < 3 or shape[-1] not in (None, *accepted):
            raise invalid("the shape of pictures", wanted, shape)
        if shape[-1] is None:
            from lambdanet.models import tensorflow_squares

            images = tensorflow_squares.checked_channels(images, accepted, wanted)
        return self.normalize(self.square(images))

    def square(self, images: Any) -> Any:
        """Returns float32 pixels in 0..1, [..., input_size, input_size, c], for pictures [..., h, w, c]."""
        square: Callable[[Any, int, float], Any] = SQUARES[self.interpolation]
        if _needs_tensorflow(images):
            from lambdanet.models import tensorflow_squares

            square = tensorflow_squares.SQUARES[self.interpolation]
        return square(images, self.input_size, self.crop_fraction)

    def normalize(self, pixels: Any) -> Any:
        """Returns `(pixels - mean) / std` for pixels in 0..1."""
        return (pixels - np.array(self.mean, np.float32)) / np.array(
            self.std, np.float32
        )


def _needs_tensorflow(images: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return K.ENGINE == "tensorflow" or (
        tensorflow is not None and tensorflow.is_tensor(images)
    )


def _converted(images: Any) -> Any:
    """Returns pictures as the tensor or array that they are prepared as."""
    if not _needs_tensorflow(images):
        return K.convert_to_numpy(images)
    import tensorflow as tf

    return tf.convert_to_tensor(images)


def preprocess_for(
    model: str,
    weights: str | Path = pretrained_weights.ALIAS,
    input_size: int | None = None,
) -> Preprocessing:
    """Returns the preprocessing for a model with trained weights.

    Args:
      model: a name of `list_models()`.
      weights: the weights, as for `create_model`.
      input_size: the side of the images, in pixels; default: that of the weights, for published ones the one
        that their accuracy was measured at.

    Raises:
      InputError: the model has no such weights, they have no preprocessing, or `input_size` is not positive.
      ConnectionError: weights of a repository are not in the cache and cannot be fetched.

    Example:
      >>> preprocess = preprocess_for("haloregnetz_b")
      >>> tuple(preprocess(np.zeros([2, 300, 400, 3], "uint8")).shape)
      (2, 224, 224, 3)
    """
    if weights == pretrained_weights.ALIAS or pretrained_weights.find(
        model, str(weights)
    ):
        found = pretrained_weights.get(model, str(weights))
        preprocessing = Preprocessing(**found.preprocessing)
    else:
        # Here, because pictures are also prepared without a model.
        from lambdanet.models import zoo

        path = pretrained.locate(model, weights, partial(zoo.create_model, model))
        preprocessing = of_weights(path)
    return (
        preprocessing
        if input_size is None
        else dataclasses.replace(preprocessing, input_size=input_size)
    )


def of_weights(path: Path) -> Preprocessing:
    """Returns the preprocessing in the metadata of a file of weights.

    Raises:
      InputError: the file has none, or is damaged.
    """
    preprocessing = from_metadata(tensor_files.metadata_of(path))
    if preprocessing is None:
        raise invalid(
            "weights", "a file whose metadata has input_size, mean and std", str(path)
        )
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
        raise InputError(
            f"the metadata of the weights cannot be used: {error}"
        ) from None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))
