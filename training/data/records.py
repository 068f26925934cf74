# SPDX-License-Identifier: Apache-2.0
"""Labelled images in TFRecords: the dataset named `tfrecord`, and what `lambdanet pseudo-label` writes.

    RECORDS/train-00000-of-01024 ...    RECORDS/validation-00000-of-00128 ...    RECORDS/classes.txt

The records are those of ImageNet's usual files, which Model Garden reads too: `image/encoded`, a file as
bytes, and `image/class/label`, from 0 on; with `image/class/probabilities`, a label may be a distribution.
What a file is followed by, such as ".tfrecord", does not matter. The classes are the lines of classes.txt,
in the order of the labels; where there are none, they are numbers. A part of a split may be named by its
files, `train[20shard:]`.
"""

import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, unknown
from lambdanet.training.data import class_names
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.shards import WHOLE, Share
from lambdanet.training.data.sources import Example

NAME = "tfrecord"
LAYOUT = "train-00000-of-00008 and so on, and the same of validation"
CLASSES, MANIFEST = "classes.txt", "manifest.json"
PSEUDO = "pseudo"  # the split that `lambdanet pseudo-label` writes
IMAGE, LABEL, PROBABILITIES = "image/encoded", "image/class/label", "image/class/probabilities"

TOGETHER = 16  # files that are read and mixed at a time
BUFFER = 4096  # records among which the next one is drawn

_FILE = re.compile(r"(?P<split>.+?)-(?P<index>\d{5})-of-(?P<count>\d{5})(\..*)?")
_SPLIT = re.compile(r"(?P<name>[^\[\]]+)(\[((?P<begin>\d+)shard)?:((?P<end>\d+)shard)?\])?")


class Piece(NamedTuple):
    """A part of a file: a number of records from one on."""

    path: str
    first: int
    number: int


class RecordsSource:
    """Images in files of TFRecords; a `sources.Source`.

    The records of an epoch come from `TOGETHER` files at a time, in a random order of the files, each record
    drawn from a buffer. What lies in one file should therefore be of many classes.

    Args:
      recipe: its number of classes counts where there is no classes.txt, its seed in the order.
      data_dir: the folder of the files.

    Raises:
      InputError: no such folder, or no files in it.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        if data_dir is None:
            raise InputError(f"dataset {NAME} needs --data_dir, the folder of the files: {LAYOUT}")
        self._root = Path(data_dir).expanduser()
        if not self._root.is_dir():
            raise InputError(f"data_dir {str(self._root)!r} is not a directory; accepted: one with {LAYOUT}")
        self._seed = recipe.seed
        if not splits(self._root):
            raise InputError(f"data_dir {str(self._root)!r} holds no TFRecords; accepted: {LAYOUT}")
        self._counts: dict[str, int] = {}
        self.manifest = read_manifest(self._root)
        self.channels = 3
        self.class_names = self._class_names(recipe)
        self.soft = self.manifest.get("labels") == "soft"

    def num_examples(self, split: str, share: Share = WHOLE) -> int:
        return sum(piece.number for piece in self._pieces(split, share))

    def examples(
        self, split: str, seed: tf.Tensor | None, share: Share = WHOLE, first: tf.Tensor | int = 0
    ) -> tf.data.Dataset:
        pieces = self._pieces(split, share)
        first = tf.cast(first, tf.int64)
        if seed is None:
            return _read_all(pieces, together=1).skip(first)
        order = tf.random.experimental.stateless_shuffle(tf.range(len(pieces)), [self._seed, seed])
        rows = tf.pad(order, [[0, -len(pieces) % TOGETHER]], constant_values=-1)
        rows = tf.reshape(rows, [-1, TOGETHER])
        counts = tf.constant([piece.number for piece in pieces] + [0], tf.int64)  # the last is that of -1
        ends = tf.cumsum(tf.reduce_sum(tf.gather(counts, rows % (len(pieces) + 1)), axis=1))
        begin = tf.searchsorted(ends, first[tf.newaxis], side="right", out_type=tf.int64)[0]
        before = tf.concat([[0], ends], axis=0)[begin]

        def mixed(row: tf.Tensor) -> tf.data.Dataset:
            read = _read_all([*pieces, Piece("", 0, 0)], TOGETHER, row % (len(pieces) + 1))
            return read.shuffle(BUFFER, seed=seed, reshuffle_each_iteration=False)

        # Whole rows of files that come before the first record are not even opened.
        return tf.data.Dataset.from_tensor_slices(rows).skip(begin).flat_map(mixed).skip(first - before)

    def stream(self, split: str) -> tf.data.Dataset:
        files = tf.data.Dataset.from_tensor_slices(_columns(self._pieces(split, WHOLE)))
        shuffled = files.shuffle(len(self._pieces(split, WHOLE)))
        return shuffled.interleave(_read, TOGETHER, num_parallel_calls=tf.data.AUTOTUNE).shuffle(BUFFER)

    def image(self, example: Example) -> Encoded:
        return Encoded(self._parsed(example)[IMAGE], self.channels)

    def label(self, example: Example) -> tf.Tensor:
        return self._parsed(example)[LABEL]

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        return []

    def probabilities(self, example: Example) -> tf.Tensor:
        """Returns the distribution over the classes that a record has for a label, float32 [num_classes]."""
        return self._parsed(example)[PROBABILITIES]

    def _parsed(self, example: Example) -> dict[str, tf.Tensor]:
        """Returns the fields of a record, which is parsed once however many of them are asked for."""
        features = {
            IMAGE: tf.io.FixedLenFeature([], tf.string),
            LABEL: tf.io.FixedLenFeature([], tf.int64),
        }
        if self.soft:
            features[PROBABILITIES] = tf.io.FixedLenFeature([len(self.class_names)], tf.float32)
        if IMAGE not in example:
            example.update(tf.io.parse_single_example(example["record"], features))
        return example

    def _class_names(self, recipe: Recipe) -> list[str]:
        if (self._root / CLASSES).exists():
            return class_names.read(self._root / CLASSES)
        if "classes" in self.manifest:
            return list(self.manifest["classes"])
        if not recipe.num_classes:
            raise InputError(
                f"num_classes is 0 and {str(self._root / CLASSES)!r} is missing; accepted: the number of "
                "classes, or a file with their names"
            )
        return [str(number) for number in range(recipe.num_classes)]

    def _pieces(self, split: str, share: Share) -> list[Piece]:
        """Returns the parts of files that a machine reads of a split: a run of its records."""
        files = [(path, self._count(path)) for path in files_of(self._root, split)]
        total = sum(count for _, count in files)
        return cut(files, *(total * index // share.count for index in (share.index, share.index + 1)))

    def _count(self, path: Path) -> int:
        if not self._counts:
            self._counts = {shard["file"]: shard["records"] for shard in self.manifest.get("shards", ())}
        if path.name not in self._counts:
            self._counts[path.name] = count_records(path)
        return self._counts[path.name]


def splits(root: Path) -> dict[str, list[Path]]:
    """Returns the files of each split, in order.

    Raises:
      InputError: one is missing.
    """
    found: dict[str, dict[int, Path]] = {}
    totals: dict[str, int] = {}
    for path in sorted(root.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match and not path.name.startswith("."):
            found.setdefault(match["split"], {})[int(match["index"])] = path
            totals[match["split"]] = max(totals.get(match["split"], 0), int(match["count"]))
    for split, files in found.items():
        missing = [index for index in range(totals[split]) if index not in files]
        if missing:
            raise InputError(
                f"split {split!r} in {str(root)!r} lacks {len(missing)} of {totals[split]} files, the first "
                f"of them number {missing[0]}"
            )
    return {split: [files[index] for index in sorted(files)] for split, files in found.items()}


def files_of(root: Path, split: str) -> list[Path]:
    """Returns the files of a split, or of a part of it, such as "train[20shard:]".

    Raises:
      InputError: there is no such split, or one of its files is missing.
    """
    match = _SPLIT.fullmatch(split)
    if not match:
        raise InputError(
            f"split {split!r} of {NAME} cannot be read; accepted: a name, or files of it, such as "
            "train[20shard:]"
        )
    found = splits(root)
    if match["name"] not in found:
        raise unknown(f"split in {str(root)!r}", match["name"], found)
    begin, end = (None if match[name] is None else int(match[name]) for name in ("begin", "end"))
    return found[match["name"]][begin:end]


def cut(files: Sequence[tuple[Path, int]], begin: int, end: int) -> list[Piece]:
    """Returns the parts of files, each with its number of records, that hold a run of their records."""
    pieces, at = [], 0
    for path, count in files:
        first, last = max(begin - at, 0), min(end - at, count)
        if first < last:
            pieces.append(Piece(str(path), first, last - first))
        at += count
    return pieces


def read_manifest(folder: Path) -> dict:
    """Returns what `lambdanet pseudo-label` tells of the files in a folder; nothing of other folders.

    Raises:
      InputError: a manifest that cannot be read.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError(f"{type(manifest).__name__} instead of an object")
        return manifest
    except (OSError, RecursionError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read: {error}") from None


def count_records(path: str | Path) -> int:
    """Returns how many records a file of TFRecords holds; of one that breaks off, those that are whole."""
    count, at = 0, 0
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while header := file.read(8):
            # The length, its checksum of 4 bytes, the record, and its checksum.
            at += 8 + 4 + struct.unpack("<Q", header.ljust(8, b"\0"))[0] + 4
            if at > size:
                break
            count += 1
            file.seek(at)
    return count


def record(image: bytes, label: int, probabilities: Sequence[float] = ()) -> bytes:
    """Returns a labelled image as one record.

    Args:
      image: a file, such as a JPEG.
      label: from 0 on.
      probabilities: of every class, for a soft label.
    """
    features = {
        IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    if len(probabilities):
        features[PROBABILITIES] = tf.train.Feature(float_list=tf.train.FloatList(value=probabilities))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def shard_name(split: str, index: int, count: int) -> str:
    """Returns the name of a file, such as train-00000-of-00008.tfrecord."""
    return f"{split}-{index:05d}-of-{count:05d}.tfrecord"


def _columns(pieces: Sequence[Piece]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    paths, firsts, counts = zip(*pieces, strict=True) if pieces else ([], [], [])
    return tf.constant(paths, tf.string), tf.constant(firsts, tf.int64), tf.constant(counts, tf.int64)


def _read_all(pieces: Sequence[Piece], together: int, chosen: tf.Tensor | None = None) -> tf.data.Dataset:
    """Reads pieces, all or those chosen, so many at a time."""
    columns = _columns(pieces)
    if chosen is not None:
        columns = tuple(tf.gather(column, chosen) for column in columns)
    files = tf.data.Dataset.from_tensor_slices(columns)
    return files.interleave(_read, together, num_parallel_calls=together, deterministic=True)


def _read(path: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """Reads a piece: dicts of the "record" and of what names it, its file and its "number" there."""
    file = tf.data.Dataset.from_tensors(tf.strings.split(path, os.sep)[-1]).repeat()
    numbered = tf.data.TFRecordDataset(path).enumerate().skip(first).take(count)
    return tf.data.Dataset.zip({"record": numbered, "name": file}).map(_flat)


def _flat(one: dict[str, Any]) -> Example:
    number, text = one["record"]
    return {"record": text, "name": one["name"], "number": number}


def read_in_order(pieces: Sequence[Piece]) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the image of each record of some pieces, in order, where labels do not matter."""
    features = {IMAGE: tf.io.FixedLenFeature([], tf.string)}
    for piece in _read_all(pieces, together=1).as_numpy_iterator() if pieces else ():
        name = f"{piece['name'].decode()}:{piece['number']}"
        yield name, tf.io.parse_single_example(piece["record"], features)[IMAGE].numpy()
