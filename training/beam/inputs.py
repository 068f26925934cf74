# SPDX-License-Identifier: Apache-2.0
"""Pictures to predict, cut into parts: files of a folder, pattern or table, TFRecords, or a TFDS dataset."""

import contextlib
import functools
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import absolute, read_remote
from lambdanet.training.data import records, tables, tfds_source
from lambdanet.training.data.bad_records import BadRecords, Example
from lambdanet.training.data.image_files import ENDINGS, as_decodable, find_pictures

# The names and contents of pictures.
Pictures = Iterator[tuple[str, bytes]]


class Part(NamedTuple):
    """Pictures that a worker predicts, and writes to one file."""

    size: int  # the number of pictures
    open: Callable[[], Pictures]

    def read(self) -> Pictures:
        """Yields the name and content of each picture; the content is empty where it cannot be read."""
        for name, content in self.open():
            try:
                yield name, as_decodable(content)
            except InputError:
                yield name, b""


class Inputs(NamedTuple):
    """All pictures; no parts where a split has none."""

    files: list[list[str | int]]  # the name and size of each, in bytes; -1: unknown
    parts: list[Part]


def open_inputs(
    data: Sequence[str],
    split: str | None,
    data_dir: str | None,
    part_size: int,
    seed: int | None,
    bad_records: BadRecords,
) -> Inputs:
    """Finds pictures, and cuts them into parts.

    Args:
      data: a folder of pictures or TFRecords, a pattern of TFRecords, a table (csv or parquet) with a column
        `file`, or the name of a TFDS dataset; or pictures, folders and patterns such as "photos/**/*.jpg".
      split: the split of TFRecords, of a dataset, or of a table that has a column `split`; None: "train".
      data_dir: the folder of TFDS's datasets, or the one that the paths in a table are relative to; default:
        that of the table.
      part_size: the number of pictures per part.
      seed: the seed of a random order of files, which mixes subfolders; None: in the order of their names.
      bad_records: the limit for files that are no pictures.

    Raises:
      InputError: an item of `data` has no pictures, there are too many other files, or `split` or `data_dir`
        is given for data without it.
    """
    items = [os.path.expanduser(item) for item in data]
    root = ""
    chosen = split or "train"
    if len(items) == 1:
        item = items[0]
        is_name = os.sep not in item and not glob.has_magic(item)
        if os.path.isdir(item):
            if splits := records.find_splits(Path(item)):
                paths = records.select_files(splits, chosen, Path(item))
                return _cut_records(list(map(str, paths)), part_size)
            root = item
        elif os.path.splitext(item)[1].lower() in tables.READERS:
            root = os.path.expanduser(data_dir or os.path.dirname(item))
            return _cut_files(root, tables.read_files(item, chosen), part_size, seed)
        elif is_name and not os.path.exists(item):
            return _cut_dataset(item, chosen, data_dir, part_size)
    if split or data_dir:
        accepted = "left out for this kind of data"
        raise invalid("split and data_dir", accepted, [split, data_dir])
    names: list[str] = []
    for item in items:
        pictures, others = _expand(item)
        if others and not pictures and len(items) == 1 and not root:
            return _cut_records(others, part_size)
        if not pictures:
            endings = ", ".join(ENDINGS)
            accepted = f"a folder or pattern of TFRecords or pictures ({endings})"
            raise invalid("data", accepted, item)
        bad_records.leave_out((item, others, len(pictures) + len(others)))
        names += [os.path.relpath(path, root) if root else path for path in pictures]
    return _cut_files(root, names, part_size, seed)


def _expand(item: str) -> tuple[list[str], list[str]]:
    """Returns the paths of the pictures, and of other files, that a folder, path or pattern stands for."""
    if os.path.isdir(item):
        return find_pictures(item)
    if os.path.isfile(item):
        return [item], []
    is_remote = "://" in item
    paths = (
        tf.io.gfile.glob(absolute(item))
        if is_remote
        else glob.glob(item, recursive=True)
    )
    pictures = []
    others = []
    for path in sorted(paths):
        if path.lower().endswith(ENDINGS):
            pictures.append(path)
        elif not tf.io.gfile.isdir(path):
            others.append(path)
    return pictures, others


def _cut_files(
    root: str, names: Sequence[str], part_size: int, seed: int | None
) -> Inputs:
    names = sorted(names)
    if seed is not None:
        np.random.default_rng(seed).shuffle(names)
    files: list[list[str | int]] = []
    for name in names:
        path = os.path.join(root, name)
        files.append([name, os.path.getsize(path) if os.path.isfile(path) else -1])
    parts = []
    for begin in range(0, len(names), part_size):
        own = names[begin : begin + part_size]
        parts.append(Part(len(own), functools.partial(_read_files, root, own)))
    return Inputs(files, parts)


def _cut_records(paths: Sequence[str], part_size: int) -> Inputs:
    if not paths:
        return Inputs([], [])
    counts = records.manifest_counts(records.read_manifest(os.path.dirname(paths[0])))
    files: list[list[str | int]] = []
    numbers = []
    for path in paths:
        name = os.path.basename(path)
        files.append([name, tf.io.gfile.stat(path).length])
        numbers.append((path, counts.get(name) or records.count_records(path)))
    total = sum(number for _, number in numbers)
    parts = []
    for begin in range(0, total, part_size):
        end = min(begin + part_size, total)
        pieces = records.cut_pieces(numbers, begin, end)
        parts.append(Part(end - begin, functools.partial(_read_records, pieces)))
    return Inputs(files, parts)


def _cut_dataset(name: str, split: str, data_dir: str | None, part_size: int) -> Inputs:
    try:
        builder = tfds_source.prepare_on_disk(tfds_source.open_tfds(name, data_dir))
    except InputError as error:
        if str(error).startswith("unknown dataset"):
            raise InputError(
                f"there is no file or folder {name!r}, and it is an {error}"
            ) from None
        raise
    features = builder.info.features
    is_image = "image" in features and isinstance(
        features["image"], tfds.features.Image
    )
    if not is_image:
        accepted = "with an image named 'image'"
        raise invalid(f"the features of dataset {name}", accepted, list(features))
    count = tfds_source.num_examples(builder, split)
    parts = []
    for piece in tfds.even_splits(split, -(-count // part_size)) if count else ():
        size = builder.info.splits[piece].num_examples
        parts.append(Part(size, functools.partial(_read_dataset, builder, piece)))
    return Inputs([[f"{builder.info.full_name} {split}", count]], parts)


def _read_files(root: str, names: Sequence[str]) -> Pictures:
    for name in names:
        path = os.path.join(root, name)
        content = b""
        with contextlib.suppress(OSError, tf.errors.OpError):
            if "://" in path:
                content = read_remote(path)
            elif os.path.isfile(path):  # a pipe would be read forever
                content = Path(path).read_bytes()
        yield name, content


def _read_records(pieces: Sequence[records.Piece]) -> Pictures:
    def parse_image(example: Example) -> tf.Tensor:
        return records.parse_field(example, records.IMAGE, [], tf.string)

    return _read_images(records.read_all(pieces), parse_image)


def _read_dataset(
    builder: tfds.core.DatasetBuilder, split: tfds.core.ReadInstruction
) -> Pictures:
    def parse_image(example: Example) -> tf.Tensor:
        return tfds_source.parse_tfds(builder, example)["image"]

    return _read_images(tfds_source.read_tfds(builder, split), parse_image)


def _read_images(
    examples: tf.data.Dataset, parse_image: Callable[[Example], tf.Tensor]
) -> Pictures:
    """Yields the file and number of each record as its name, and its picture."""
    parse_image = tf.function(parse_image)
    for example in examples:
        try:
            content = parse_image(example).numpy()
        except tf.errors.InvalidArgumentError:
            content = b""
        yield f"{example['name'].numpy().decode()}:{int(example['number'])}", content
