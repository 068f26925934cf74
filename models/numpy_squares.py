# SPDX-License-Identifier: Apache-2.0
"""Square pictures for a model, by Pillow; `tensorflow_squares` has the same for tensors of TensorFlow."""

import math

import numpy as np
from PIL import Image


def central_square(images: np.ndarray, size: int, crop_fraction: float) -> np.ndarray:
    """Does what that of `tensorflow_squares` does, within 1e-6."""
    height, width = images.shape[-3:-1]
    side = max(1, int(np.round(np.float32(crop_fraction) * np.float32(min(height, width)))))
    square = _cropped(images, (height - side) // 2, (width - side) // 2, side)
    pixels = _resized(square.astype(np.float32), (size, size), Image.Resampling.BILINEAR)
    return pixels / np.float32(255)


def pillow_square(images: np.ndarray, size: int, crop_fraction: float) -> np.ndarray:
    """Does what that of `tensorflow_squares` does, bit for bit."""
    height, width = images.shape[-3:-1]
    shorter = math.floor(size / crop_fraction)
    new_size = max(shorter, shorter * height // width), max(shorter, shorter * width // height)
    resized = _resized(images, new_size, Image.Resampling.BICUBIC)
    top, left = (round((side - size) / 2) for side in new_size)
    return _cropped(resized, top, left, size).astype(np.float32) / np.float32(255)


def _cropped(images: np.ndarray, top: int, left: int, side: int) -> np.ndarray:
    return images[..., top : top + side, left : left + side, :]


def _resized(images: np.ndarray, new_size: tuple[int, int], resample: Image.Resampling) -> np.ndarray:
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
