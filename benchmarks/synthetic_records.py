# SPDX-License-Identifier: Apache-2.0
"""Synthetic JPEG TFRecords with the size and decoding cost of ImageNet's pictures."""

import io
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet.training.data import records

SIZES = ((375, 500), (375, 500), (500, 375))  # the usual sizes of ImageNet's pictures
QUALITY = 90  # about 115 kB per file; ImageNet's have 110 kB
FILES = 16
PER_FILE = 1024


def write(folder: Path, pictures: int, seed: int = 0) -> None:
    """Writes a split `train` of `FILES` files with `PER_FILE` records each; all files link to the first.

    Args:
      folder: an existing folder.
      pictures: the number of different pictures.
      seed: the random seed of the pictures.
    """
    random = np.random.default_rng(seed)
    files = [jpeg(random, *SIZES[index % len(SIZES)]) for index in range(pictures)]
    first, *others = (folder / records.shard_name("train", index, FILES) for index in range(FILES))
    with tf.io.TFRecordWriter(str(first)) as writer:
        for index in range(PER_FILE):
            writer.write(records.encode_record(files[index % pictures], index % 1000))
    for path in others:
        os.link(first, path)


def jpeg(random: np.random.Generator, height: int, width: int) -> bytes:
    """Returns a random picture with the 1/f spectrum of photographs."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, np.newaxis], np.fft.rfftfreq(width))
    amplitude = 1 / np.maximum(frequency, 1 / max(height, width))

    def field() -> np.ndarray:
        phases = random.uniform(0, 2 * np.pi, amplitude.shape)
        values = np.fft.irfft2(amplitude * np.exp(1j * phases), (height, width))
        return (values - values.mean()) / values.std()

    light, red, blue = 50 * field(), 15 * field(), 15 * field()
    pixels = 120 + np.stack([light + red, light - (red + blue) / 2, light + blue], axis=-1)
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
