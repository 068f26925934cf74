# SPDX-License-Identifier: Apache-2.0
"""Pictures to predict, in parts: files of a folder, a pattern or a table, TFRecords, or a TFDS dataset."""

import contextlib
import dataclasses
import functools
import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lambdanet.errors import InputError, invalid
from lambdanet.files import read_remote
from lambdanet.training.data import folder, records, sources
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.image_files import ENDINGS, as_decodable, find_pictures


class Picture(NamedTuple):
    """An encoded picture."""

    rank: int  # its place among all pictures in the order of their names
    name: str
    # In a format for `image_bytes.decode`; empty where it cannot be read.
    content: bytes


@dataclasses.dataclass(frozen=True)
class Part:
    """Pictures that a worker predicts at once, in a fixed order."""

    number: int
    size: int  # the number of pictures

    def read(self) -> Iterator[Picture]:
        """Yields the pictures."""
        raise NotImplementedError


class Inputs(NamedTuple):
    """All pictures."""

    description: str  # a line about them
    fingerprint: str  # a hash that changes when they change
    parts: Sequence[Part]


def open_inputs(
    data: str | Sequence[str],
    split: str,
    data_dir: str | None,
    part_size: int,
    seed: int | None,
    bad_records: BadRecords,
) -> Inputs:
    """Finds pictures, and cuts them into parts.

    Args:
      data: a folder of pictures or TFRecords, a table (csv or parquet) with a column `file`, or the name of a
        TFDS dataset; or files, folders and patterns such as "photos/**/*.jpg".
      split: the split of TFRecords, of a dataset, or of a table that has a column `split`.
      data_dir: the folder of TFDS's datasets, or the one that the paths in a table are relative to; default:
        that of the table.
      part_size: the number of pictures per part.
      seed: the seed of a random order of files, which mixes subfolders; None: in the order of their names.
      bad_records: the limit for files that are no pictures.

    Raises:
      InputError: an item of `data` has no pictures, or there are too many other files.
    """
    items = [
        os.path.expanduser(item) for item in ([data] if isinstance(data, str) else data)
    ]
    if len(items) == 1:
        (item,) = items
        if os.path.isdir(item) and (splits := records.find_splits(Path(item))):
            return _cut_records(
                records.select_files(splits, split, Path(item)), split, item, part_size
            )
        if os.path.splitext(item)[1].lower() in folder.READERS:
            root = os.path.expanduser(data_dir or os.path.dirname(item))
            if data_dir is not None and not tf.io.gfile.isdir(root):
                raise invalid("data_dir", "an existing folder", data_dir)
            return _cut_files(root, folder.read_files(item, split), part_size, seed)
        if os.sep not in item and not os.path.exists(item) and not glob.has_magic(item):
            return _cut_dataset(item, split, data_dir, part_size)
    found = {item: _expand(item) for item in items}
    for item, (pictures, others) in found.items():
        if (
            not pictures
            and others
            and len(items) == 1
            and glob.has_magic(item)
            and not os.path.isdir(item)
        ):
            return _cut_records(others, split, item, part_size)
        if (
            not pictures
            and not others
            and glob.has_magic(item)
            and not os.path.isdir(item)
        ):
            raise invalid("data", "a pattern that matches files", item)
        if not pictures:
            raise invalid(
                "data",
                f"a folder of TFRecords or pictures ({', '.join(ENDINGS)})",
                item,
            )
    names = [name for pictures, _ in found.values() for name in pictures]
    bad_records.leave_out(
        *((item, rest, len(some) + len(rest)) for item, (some, rest) in found.items())
    )
    root = items[0] if len(items) == 1 and os.path.isdir(items[0]) else ""
    return _cut_files(
        root,
        [os.path.relpath(name, root) if root else name for name in names],
        part_size,
        seed,
    )


def check_apart(data: str | Sequence[str], out: str) -> None:
    """Raises `InputError` where the folder `out` is within one of `data`, whose files it would change."""
    for item in [data] if isinstance(data, str) else data:
        if os.path.isdir(root := Path(item).expanduser()) and Path(
            out
        ).resolve().is_relative_to(root.resolve()):
            raise invalid("out", f"a folder outside of the data in {item!r}", out)


@dataclasses.dataclass(frozen=True)
class FilePart(Part):
    """Files, by their names in a folder."""

    root: str
    names: list[str]
    ranks: list[int]

    def read(self) -> Iterator[Picture]:
        """Yields the pictures."""
        for rank, name in zip(self.ranks, self.names, strict=True):
            path, content = os.path.join(self.root, name), b""
            with contextlib.suppress(OSError, tf.errors.OpError):
                if "://" in path:
                    content = read_remote(path)
                elif os.path.isfile(path):  # a pipe would be read forever
                    content = Path(path).read_bytes()
            yield _picture(rank, name, content)


@dataclasses.dataclass(frozen=True)
class RecordPart(Part):
    """Records of consecutive files with `image/encoded`."""

    pieces: list[records.Piece]
    first_rank: int

    def read(self) -> Iterator[Picture]:
        """Yields the pictures."""
        parse = functools.partial(
            records.parse_field, field=records.IMAGE, shape=[], dtype=tf.string
        )
        named = _read_records(records.read_all(self.pieces), parse)
        for rank, (name, number, content) in enumerate(named, self.first_rank):
            yield _picture(rank, f"{name}:{number}", content)


@dataclasses.dataclass(frozen=True)
class DatasetPart(Part):
    """Consecutive records of a TFDS dataset, read from several files at a time."""

    builder: tfds.core.DatasetBuilder
    split: tfds.core.ReadInstruction
    first_rank: int

    def read(self) -> Iterator[Picture]:
        """Yields the pictures."""
        ranks, rank = {}, self.first_rank  # of the record 0 of each file
        for file in self.builder.info.splits[self.split].file_instructions:
            ranks[file.basename()] = rank - file.skip
            rank += file.take
        examples = sources.read_tfds(self.builder, self.split)
        parse = functools.partial(sources.parse_tfds, self.builder)
        for name, number, content in _read_records(
            examples, lambda example: parse(example)["image"]
        ):
            yield _picture(ranks[name] + number, f"{name}:{number}", content)


def _picture(rank: int, name: str, content: bytes) -> Picture:
    try:
        return Picture(rank, name, as_decodable(content))
    except InputError:
        return Picture(rank, name, b"")


def _read_records(
    examples: tf.data.Dataset, parse_image: Callable[[sources.Example], tf.Tensor]
) -> Iterator[tuple[str, int, bytes]]:
    """Yields the file, number and picture of each record."""
    parse_image = tf.function(parse_image)
    for example in examples:
        try:
            content = parse_image(example).numpy()
        except tf.errors.InvalidArgumentError:
            content = b""
        yield example["name"].numpy().decode(), int(example["number"]), content


def _cut_files(
    root: str, names: Iterable[str], part_size: int, seed: int | None
) -> Inputs:
    found = sorted(names)
    order = (
        range(len(found))
        if seed is None
        else np.random.default_rng(seed).permutation(len(found))
    )
    parts = [
        list(map(int, order[begin : begin + part_size]))
        for begin in range(0, len(found), part_size)
    ]
    names = [found[index] for index in order]
    digest = _digest(f"{name}:{_size(os.path.join(root, name))}" for name in names)
    file_parts = []
    for number, ranks in enumerate(parts):
        own = [found[rank] for rank in ranks]
        file_parts.append(FilePart(number, len(ranks), root, own, ranks))
    return Inputs(f"{len(found)} files", digest, file_parts)


def _size(path: str) -> int:
    """Returns the size of a file, or -1 where there is none, or where it is remote."""
    return os.path.getsize(path) if os.path.isfile(path) else -1


def _cut_records(
    paths: Sequence[str | Path], split: str, data: str, part_size: int
) -> Inputs:
    if not paths:
        raise invalid("split", f"one with files in {data!r}", split)
    counts = records.manifest_counts(records.read_manifest(os.path.dirname(paths[0])))
    files = [
        (str(path), counts.get(os.path.basename(path)) or records.count_records(path))
        for path in paths
    ]
    count = sum(number for _, number in files)
    if not count:
        raise invalid("split", f"one with images in {data!r}", split)
    parts = [
        RecordPart(
            number,
            min(part_size, count - begin),
            records.cut_pieces(files, begin, begin + part_size),
            begin,
        )
        for number, begin in enumerate(range(0, count, part_size))
    ]
    names = (
        f"{os.path.basename(path)}:{tf.io.gfile.stat(path).length}" for path, _ in files
    )
    return Inputs(f"{count} records of {split}", _digest(names), parts)


def _cut_dataset(name: str, split: str, data_dir: str | None, part_size: int) -> Inputs:
    try:
        builder = sources.prepare_on_disk(sources.open_tfds(name, data_dir))
    except InputError as error:
        if str(error).startswith("unknown dataset"):
            raise InputError(
                f"there is no file or folder {name!r}, and it is an {error}"
            ) from None
        raise
    info = builder.info
    if "image" not in info.features or not isinstance(
        info.features["image"], tfds.features.Image
    ):
        raise invalid(
            f"the features of dataset {name}",
            "with an image named 'image'",
            list(info.features),
        )
    count = sources.num_examples(builder, split)
    if not count:
        raise invalid("split", f"one with images in dataset {name}", split)
    splits = tfds.even_splits(split, -(-count // part_size))
    sizes = [info.splits[part].num_examples for part in splits]
    begins = np.cumsum([0, *sizes]).tolist()
    parts = [
        DatasetPart(at, size, builder, splits[at], begins[at])
        for at, size in enumerate(sizes)
    ]
    description = f"{info.full_name} {split}, {count} images"
    return Inputs(description, _digest([description]), parts)


def _expand(item: str) -> tuple[list[str], list[str]]:
    """Returns the paths of the pictures, and of other files, that a folder, path or pattern stands for."""
    if os.path.isdir(item):
        return find_pictures(item)
    if glob.has_magic(item) and not os.path.exists(item):
        paths = (
            tf.io.gfile.glob(item) if "://" in item else glob.glob(item, recursive=True)
        )
        is_dir = tf.io.gfile.isdir if "://" in item else os.path.isdir
        files = sorted(path for path in paths if not is_dir(path))
        pictures = [path for path in files if path.lower().endswith(ENDINGS)]
        return pictures, [path for path in files if not path.lower().endswith(ENDINGS)]
    if "://" not in item and not os.path.isfile(item):
        accepted = "a folder of pictures or TFRecords, a table, a file, a pattern, or the name of a dataset"
        raise invalid("data", accepted, item)
    return [item], []


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()
