# SPDX-License-Identifier: Apache-2.0
"""Gray pictures of 8x8 pixels, each of a different level, written for every source of labeled pictures.

The picture `number` has the level 4 x number and the class `number % 3`, in training and in evaluation.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import write_picture
from pyarrow import parquet
from training_runs import recipe_with

from lambdanet.training.data import records
from lambdanet.training.data.tfds_source import Digits

COUNT = 60
CLASSES = 3
LEVELS = 4  # gray levels from a picture to the next
# The files of TFRecords in training: more than are interleaved.
FILES = 20

# Of a recipe for most sources.
FIELDS = {"dataset": "folder", "eval_split": "validation", "num_classes": CLASSES}

# The images of this recipe are gray levels; an epoch has three full batches, of 48 pictures.
RECIPE = recipe_with(
    "digits",
    augmentation="none",
    epochs=3,
    global_batch_size=16,
    input_size=8,
    mean=(0.0,) * 3,
    std=(1 / 255,) * 3,
)


def pixels(number: int, channels: int = 3) -> np.ndarray:
    """Returns the picture of a number, uint8 [8, 8, channels]."""
    return np.full([8, 8, channels], LEVELS * number, np.uint8)


def numbers(batches: Any) -> list[list[int]]:
    """Returns the numbers of the pictures in batches; asserts that the labels belong to them."""
    found = []
    for images, labels, *_ in batches:
        batch = np.rint(images[:, 4, 4, 0].numpy() / LEVELS).astype(int)
        np.testing.assert_array_equal(labels, batch % CLASSES)
        found.append(batch.tolist())
    return found


def assert_good_in_place(
    batches: list[list[int]], whole: list[list[int]], lost: Collection[int]
) -> None:
    """Asserts that batches have the numbers of whole ones, but for those that are lost, in their places."""
    for batch, undamaged in zip(batches, whole, strict=True):
        good = [number for number in undamaged if number not in lost]
        # Those that can be read are repeated in turn, by their slots.
        assert batch == [
            number if number in good else good[slot % len(good)]
            for slot, number in enumerate(undamaged)
        ]


def write_folder(root: Path, count: int = COUNT) -> dict[str, Any]:
    """Writes PNG files into class folders; like the others, returns the fields of a recipe for them."""
    for split in ("train", "validation"):
        for number in range(count):
            path = root / split / str(number % CLASSES) / f"{number:02d}.png"
            write_picture(path, pixels(number))
    return FIELDS


def write_tfrecord(
    root: Path, count: int = COUNT, files: int = FILES
) -> dict[str, Any]:
    """Writes the same number of records into each training file, and all records into one evaluation file."""
    for split, num_files in (("train", files), ("validation", 1)):
        each = count // num_files
        for index in range(num_files):
            path = root / records.shard_name(split, index, num_files)
            contents = [
                records.encode_record(
                    tf.io.encode_png(pixels(number)).numpy(), number % CLASSES
                )
                for number in range(each * index, each * (index + 1))
            ]
            records.write_records(str(path), contents)
    return FIELDS | {"dataset": "tfrecord"}


def write_parquet(root: Path, count: int = COUNT, group: int = 30) -> dict[str, Any]:
    """Writes a file with row groups of some pictures for each split."""
    contents = [tf.io.encode_png(pixels(number)).numpy() for number in range(count)]
    labels = np.arange(count) % CLASSES
    table = pa.table({"image": [{"bytes": png} for png in contents], "label": labels})
    for split in ("train", "validation"):
        parquet.write_table(table, root / f"{split}-0.parquet", row_group_size=group)
    return FIELDS


def write_tfds(root: Path, count: int = COUNT, files: int = 4) -> dict[str, Any]:
    """Writes the dataset `digits` of TFDS with these pictures."""

    def examples(self: Any, test: bool) -> Iterator[tuple[str, dict[str, object]]]:
        for number in range(count):
            yield str(number), {"image": pixels(number, 1), "label": number % CLASSES}

    config = tfds.download.DownloadConfig(num_shards=files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Digits, "_generate_examples", examples)
        builder = tfds.builder("digits", data_dir=str(root))
        builder.download_and_prepare(download_config=config)
    return {}
