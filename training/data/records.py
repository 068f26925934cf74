# SPDX-License-Identifier: Apache-2.0
"""Labeled images in TFRecords: the dataset `tfrecord`, and the files of `lambdanet pseudo-label`.

    RECORDS/train-00000-of-01024 ...    RECORDS/validation-00000-of-00128 ...    RECORDS/classes.txt

The records are as in the common ImageNet files, which Model Garden also reads: `image/encoded`, the bytes
of an image file, and `image/class/label`, from 0; with `image/class/probabilities`, a label may be a
distribution. File names may have an ending, such as ".tfrecord". The classes are the lines of classes.txt, in
the order of the labels; without that file, they are numbers. A part of a split is named by its files:
`train[20shard:]`.
"""

import functools
import json
import os
import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import InputError, check_known, invalid
from lambdanet.core.files import read_remote
from lambdanet.training.data import class_names
from lambdanet.training.data.bad_records import Example
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard, Source

NAME = "tfrecord"
LAYOUT = "train-00000-of-00008 and so on, and the same of validation"
CLASSES = "classes.txt"
MANIFEST = "manifest.json"
PSEUDO = "pseudo"  # the split written by `lambdanet pseudo-label`
IMAGE = "image/encoded"
LABEL = "image/class/label"
PROBABILITIES = "image/class/probabilities"

INTERLEAVED_FILES = 16  # read and mixed at a time
BUFFER = 4096  # records from which the next one is drawn

_FILE = re.compile(r"(?P<split>.+?)-(?P<index>\d{5})-of-(?P<count>\d{5})(\..*)?")
_SPLIT = re.compile(
    r"(?P<name>[^\[\]]+)(\[((?P<begin>\d+)shard)?:((?P<end>\d+)shard)?\])?"
)


class Piece(NamedTuple):
    """A part of a file: a number of records from one on."""

    path: str
    first: int
    number: int


class RecordsSource(Source):
    """Images in files of TFRecords; a `sources.Source`. Each file is counted once.

    The records of an epoch come from `INTERLEAVED_FILES` files at a time, in a random order of the files,
    through a shuffle buffer. A file should therefore hold records of many classes. The recipe has the seed,
    and the number of classes where there is no classes.txt. `name` is that of the folder in messages.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None, name: str = "data_dir"):
        accepted = f"the folder of the TFRecords: {LAYOUT}"
        if data_dir is None or not Path(data_dir).expanduser().is_dir():
            raise invalid(name, accepted, data_dir)
        self._root = Path(data_dir).expanduser()
        self._splits = find_splits(self._root)
        if not self._splits:
            raise invalid(name, accepted, data_dir, "it has no such files")
        self._pieces = functools.cache(self._find_pieces)
        self._seed = recipe.seed
        self.manifest = read_manifest(self._root)
        self._counts = manifest_counts(self.manifest)
        self.channels = 1 if len(recipe.mean) == 1 else 3
        self.class_names = self._class_names(recipe)
        self.soft = self.manifest.get("labels") == "soft"

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return sum(piece.number for piece in self._pieces(split, shard))

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        pieces = self._pieces(split, shard)
        first = tf.cast(first, tf.int64)
        if seed is None:
            return read_all(pieces).skip(first)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(pieces)), [self._seed, seed]
        )
        # An empty piece fills up the last row.
        padded = [*pieces, Piece("", 0, 0)]
        padding = [[0, -len(pieces) % INTERLEAVED_FILES]]
        rows = tf.pad(order, padding, constant_values=len(pieces))
        rows = tf.reshape(rows, [-1, INTERLEAVED_FILES])
        counts = tf.constant([piece.number for piece in padded], tf.int64)
        ends = tf.cumsum(tf.reduce_sum(tf.gather(counts, rows), axis=1))
        begin = tf.searchsorted(
            ends, first[tf.newaxis], side="right", out_type=tf.int64
        )[0]
        before = tf.concat([[0], ends], axis=0)[begin]

        def read_row(row: tf.Tensor) -> tf.data.Dataset:
            read = read_all(padded, INTERLEAVED_FILES, row)
            return read.shuffle(BUFFER, seed=seed, reshuffle_each_iteration=False)

        # Rows of files that come before the first record are not opened.
        rows = tf.data.Dataset.from_tensor_slices(rows).skip(begin)
        return rows.flat_map(read_row).skip(first - before)

    def image(self, example: Example) -> Encoded:
        return Encoded(parse_field(example, IMAGE, [], tf.string), self.channels)

    def label(self, example: Example) -> tf.Tensor:
        return parse_field(example, LABEL, [], tf.int64)

    def probabilities(self, example: Example) -> tf.Tensor:
        """Returns the soft label of an example, a distribution over the classes, float32 [num_classes]."""
        shape = [len(self.class_names)]
        found = parse_field(example, PROBABILITIES, shape, tf.float32)
        if not self.numbers:
            return found
        return tf.scatter_nd(tf.constant(self.numbers)[:, tf.newaxis], found, shape)

    def _class_names(self, recipe: Recipe) -> list[str]:
        if (self._root / CLASSES).exists():
            return class_names.read_names(self._root / CLASSES)
        if "classes" in self.manifest:
            return list(self.manifest["classes"])
        if not recipe.num_classes:
            missing = f"{str(self._root / CLASSES)!r} is missing"
            raise invalid(
                "num_classes", "the number of classes", recipe.num_classes, missing
            )
        return [str(number) for number in range(recipe.num_classes)]

    def _find_pieces(self, split: str, shard: Shard) -> list[Piece]:
        """Returns the parts of files that a machine reads: a contiguous run of the split's records."""
        files = [
            (path, self._count(path))
            for path in select_files(self._splits, split, self._root)
        ]
        total = sum(count for _, count in files)
        begin = total * shard.index // shard.count
        end = total * (shard.index + 1) // shard.count
        return cut_pieces(files, begin, end)

    def _count(self, path: Path) -> int:
        if path.name not in self._counts:
            self._counts[path.name] = count_records(path)
        return self._counts[path.name]


class MultilabelRecords(RecordsSource):
    """Images in TFRecords with a list of the numbers of their classes in `image/class/label`."""

    def label(self, example: Example) -> tf.Tensor:
        """Returns 1 for each class of an example, and 0 for the others, float32 [num_classes]."""
        count = len(self.class_names)
        features = {LABEL: tf.io.RaggedFeature(tf.int64)}
        found = tf.io.parse_single_example(example["record"], features)[LABEL]
        labels = tf.reduce_sum(tf.one_hot(found, count), axis=0)
        # Other numbers, and repeated ones, are bad records.
        is_valid = tf.reduce_sum(tf.cast(labels == 1, tf.int32)) == tf.size(found)
        with tf.control_dependencies([tf.debugging.Assert(is_valid, [found])]):
            return tf.identity(labels)

    def check_readable(self, split: str) -> None:
        labels = self.examples(split, None).map(self.label).ignore_errors()
        if not any(label.any() for label in labels.as_numpy_iterator()):
            raise InputError(f"no picture of split {split!r} has a class")


def parse_field(
    example: Example, field: str, shape: list[int], dtype: tf.DType
) -> tf.Tensor:
    """Returns a field of an example's record."""
    features = {field: tf.io.FixedLenFeature(shape, dtype)}
    return tf.io.parse_single_example(example["record"], features)[field]


def find_splits(root: Path, parquet: bool = False) -> dict[str, list[Path]]:
    """Returns the files of each split, in order; `InputError` where one is missing, or of another set.

    Args:
      root: the folder.
      parquet: whether they are Parquet files, or TFRecords.
    """
    found: dict[str, dict[int, Path]] = {}
    totals: dict[str, int] = {}
    for path in sorted(root.iterdir()):
        match = _FILE.fullmatch(path.name)
        is_kind = (path.suffix == ".parquet") == parquet
        if match and is_kind and not path.name.startswith("."):
            split = match["split"]
            count = int(match["count"])
            files = found.setdefault(split, {})
            index = int(match["index"])
            if totals.setdefault(split, count) != count or index in files:
                other = next(iter(files.values()))
                raise InputError(
                    f"split {split!r} in {str(root)!r} has {other.name!r} and {path.name!r}: files of two "
                    "conversions, of which one has to be moved"
                )
            files[index] = path
    for split, files in found.items():
        missing = [index for index in range(totals[split]) if index not in files]
        if missing:
            raise InputError(
                f"split {split!r} in {str(root)!r} lacks {len(missing)} of {totals[split]} files, the first "
                f"of them number {missing[0]}"
            )
    # In order, because the paths were.
    return {split: list(files.values()) for split, files in found.items()}


def select_files(
    splits: Mapping[str, list[Path]], split: str, root: Path
) -> list[Path]:
    """Returns the files of a split, or of a part of it.

    Args:
      splits: the files of each split, from `find_splits`.
      split: the name of a split, or of a part in whole files, such as "train[20shard:]".
      root: the folder, for messages.

    Raises:
      InputError: there is no such split, or the part has another form.
    """
    match = _SPLIT.fullmatch(split)
    if not match:
        raise invalid(
            f"split of {NAME}",
            "a name, or a part in whole files, such as train[20shard:]",
            split,
        )
    check_known(f"split in {str(root)!r}:", match["name"], splits)
    begin = int(match["begin"] or 0)
    end = int(match["end"]) if match["end"] else None
    return splits[match["name"]][begin:end]


def cut_pieces(
    files: Sequence[tuple[str | Path, int]], begin: int, end: int
) -> list[Piece]:
    """Returns the parts of files that contain a run of records.

    Args:
      files: the paths and their numbers of records, in order.
      begin: the first record of the run.
      end: the record after its last.
    """
    pieces = []
    at = 0
    for path, count in files:
        first = max(begin - at, 0)
        last = min(end - at, count)
        if first < last:
            pieces.append(Piece(str(path), first, last - first))
        at += count
    return pieces


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Returns the manifest that `lambdanet pseudo-label` wrote into a folder; {} where there is none.

    Raises:
      InputError: it is damaged.
    """
    path = f"{folder}/{MANIFEST}"
    if not tf.io.gfile.exists(path):
        return {}
    try:
        manifest = json.loads(read_remote(path))
        if not isinstance(manifest, dict):
            raise ValueError(f"{type(manifest).__name__} instead of an object")
        return manifest
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise InputError(f"{path!r} cannot be read: {error}") from None


def manifest_counts(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of records of each file in a manifest."""
    return {
        shard["file"]: shard["records"]
        for shard in manifest.get("shards", ())
        if "records" in shard
    }


def count_records(path: str | Path) -> int:
    """Returns the number of records in a file of TFRecords, damaged ones included.

    `InputError` where the file is truncated, or the length of a record is damaged.
    """
    count = 0
    at = 0
    size = tf.io.gfile.stat(str(path)).length
    with (
        tf.io.gfile.GFile(str(path), "rb")
        if "://" in str(path)
        else open(path, "rb") as file
    ):
        while header := file.read(8):
            # The length, its checksum of 4 bytes, the record, and its checksum.
            length = struct.unpack("<Q", header.ljust(8, b"\0"))[0]
            at += 8 + 4 + length + 4
            if not length or at > size:
                readable = sum(
                    1 for _ in tf.data.TFRecordDataset(str(path)).ignore_errors()
                )
                raise InputError(
                    f"{str(path)!r} is damaged after {readable} records; how many follow is unknown"
                )
            count += 1
            file.seek(at)
    return count


def encode_record(
    image: bytes, label: int, probabilities: Sequence[float] = ()
) -> bytes:
    """Returns a record with an image, its class index and, for a soft label, all probabilities.

    Args:
      image: the bytes of an image file.
      label: the class, from 0.
      probabilities: one per class; empty: no soft label.
    """
    features = {IMAGE: bytes_feature(image)} | label_features(label, probabilities)
    return serialize(features)


def bytes_feature(*values: bytes) -> tf.train.Feature:
    """Returns the feature of texts or files in a record."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def serialize(features: Mapping[str, tf.train.Feature]) -> bytes:
    """Returns an example as a record, with the features in the order of their names."""
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def label_features(
    label: int, probabilities: Sequence[float] = ()
) -> dict[str, tf.train.Feature]:
    """Returns the features of a class and, where they are given, of the probabilities of all classes."""
    features = {LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
    if len(probabilities):
        features[PROBABILITIES] = tf.train.Feature(
            float_list=tf.train.FloatList(value=probabilities)
        )
    return features


def write_records(path: str, contents: Iterable[bytes]) -> None:
    """Writes a file of records completely or not at all; `InputError` where it cannot be written."""
    temporary = f"{path}.partial-{uuid.uuid4().hex[:8]}"
    try:
        with tf.io.TFRecordWriter(temporary) as writer:
            for content in contents:
                writer.write(content)
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except tf.errors.OpError as error:
        raise InputError(f"out {path!r} cannot be written ({error.message})") from None
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.remove(temporary)


def shard_name(split: str, index: int, count: int) -> str:
    """Returns the name of a file, such as train-00000-of-00008.tfrecord."""
    return f"{split}-{index:05d}-of-{count:05d}.tfrecord"


def read_all(
    pieces: Sequence[Piece], num_parallel: int = 1, chosen: tf.Tensor | None = None
) -> tf.data.Dataset:
    """Returns the examples of pieces of files.

    Args:
      pieces: the pieces.
      num_parallel: the number of pieces to read at a time.
      chosen: the indices of the pieces to read, integers [n]; None: all.
    """
    fields = zip(*pieces, strict=True) if pieces else ([], [], [])
    columns = map(tf.constant, fields, (tf.string, tf.int64, tf.int64))
    chosen = tf.range(len(pieces)) if chosen is None else chosen
    files = tf.data.Dataset.from_tensor_slices(
        tuple(tf.gather(column, chosen) for column in columns)
    )
    return files.interleave(
        _read, num_parallel, num_parallel_calls=num_parallel, deterministic=True
    )


def number_records(
    records: tf.data.Dataset, path: tf.Tensor, first: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
    """Returns `count` records of a file, from `first` on: "record", its "number", and the file's "name".

    The first damaged record and all after it are empty: they cannot be decoded, and count as bad records.
    """
    # A file that does not exist fails at each attempt to read it.
    attempts = tf.data.Dataset.zip((tf.data.Dataset.range(count), records.skip(first)))
    readable = attempts.ignore_errors().map(lambda attempt, record: record)
    empty = tf.data.Dataset.from_tensors("").repeat()
    name = tf.data.Dataset.from_tensors(tf.strings.split(path, os.sep)[-1]).repeat()
    numbers = tf.data.Dataset.range(first, first + count)
    return tf.data.Dataset.zip(
        {"record": readable.concatenate(empty), "name": name, "number": numbers}
    )


def _read(path: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    return number_records(tf.data.TFRecordDataset(path), path, first, count)
