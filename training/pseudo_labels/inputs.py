# SPDX-License-Identifier: Apache-2.0
"""The inputs of pseudo-labeling: the teacher, and pictures from a folder, TFRecords or a TFDS dataset."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lambdanet.backend.tensors import ceil_div
from lambdanet.errors import invalid
from lambdanet.training.data import records, sources
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.image_files import ENDINGS, find_pictures
from lambdanet.training.serving.exported_model import load_classifier


class Inputs(Protocol):
    """Pictures in parts, each with a fixed order."""

    description: str  # a line about the pictures
    num_parts: int
    fingerprint: str  # a hash that changes when the pictures change

    def read(self, part: int) -> Iterator[tuple[str, bytes]]:
        """Yields the name and content of each picture of a part."""


def open_inputs(
    data: str, split: str, data_dir: str | None, part_size: int, seed: int, bad_records: BadRecords
) -> Inputs:
    """Finds the pictures for `pseudo_label`, with the arguments of the same names; `InputError` for none.

    The seed is that of the order of files in a folder, which mixes the subfolders.
    """
    root = Path(data).expanduser()
    if not root.is_dir():
        if os.sep in data:
            raise invalid("data", "a folder of pictures or TFRecords, or the name of a dataset", data)
        return TfdsInputs(data, split, data_dir, part_size)
    if records.find_splits(root):
        return RecordInputs(root, split, part_size)
    return FileInputs(root, part_size, seed, bad_records)


class FileInputs(Inputs):
    """Picture files below a folder, in a random order."""

    def __init__(self, root: Path, part_size: int, seed: int, bad_records: BadRecords):
        pictures, others = find_pictures(root)
        found = sorted(os.path.relpath(path, root) for path in pictures)
        if not found:
            raise invalid("data", f"a folder of TFRecords or pictures ({', '.join(ENDINGS)})", str(root))
        bad_records.leave_out((str(root), others, len(pictures) + len(others)))
        self._root = root
        order = np.random.default_rng(seed).permutation(len(found))
        self._names = [found[index] for index in order]
        self._part_size = part_size
        self.num_parts = ceil_div(len(found), part_size)
        self.description = f"{len(found)} files"
        self.fingerprint = _digest(f"{name}:{(root / name).stat().st_size}" for name in found)

    def read(self, part: int) -> Iterator[tuple[str, bytes]]:
        for name in self._names[part * self._part_size : (part + 1) * self._part_size]:
            try:
                yield name, (self._root / name).read_bytes()
            except OSError:
                yield name, b""  # reported as unreadable


class RecordInputs(Inputs):
    """TFRecord files with `image/encoded`."""

    def __init__(self, root: Path, split: str, part_size: int):
        paths = records.select_files(records.find_splits(root), split, root)
        files = [(path, records.count_records(path)) for path in paths]
        count = sum(number for _, number in files)
        if not count:
            raise invalid("split", f"one with images in {str(root)!r}", split)
        begins = range(0, count, part_size)
        self._parts = [records.cut_pieces(files, begin, begin + part_size) for begin in begins]
        self.num_parts = len(self._parts)
        self.description = f"{count} records of {split}"
        self.fingerprint = _digest(f"{path.name}:{path.stat().st_size}" for path, _ in files)

    def read(self, part: int) -> Iterator[tuple[str, bytes]]:
        parse = functools.partial(records.parse_field, field=records.IMAGE, shape=[], dtype=tf.string)
        return _read(records.read_all(self._parts[part]), parse)


class TfdsInputs(Inputs):
    """A split of a TFDS dataset with images named "image"."""

    def __init__(self, name: str, split: str, data_dir: str | None, part_size: int):
        self._builder = sources.prepare_on_disk(sources.open_tfds(name, data_dir))
        info = self._builder.info
        if "image" not in info.features or not isinstance(info.features["image"], tfds.features.Image):
            features = f"the features of dataset {name}"
            raise invalid(features, "with an image named 'image'", list(info.features))
        count = sources.num_examples(self._builder, split)
        if not count:
            raise invalid("split", f"one with images in dataset {name}", split)
        self.num_parts = ceil_div(count, part_size)
        self._parts = tfds.even_splits(split, self.num_parts)
        self.description = f"{info.full_name} {split}, {count} images"
        self.fingerprint = _digest([self.description])

    def read(self, part: int) -> Iterator[tuple[str, bytes]]:
        examples = sources.read_tfds(self._builder, self._parts[part])
        return _read(examples, lambda example: sources.parse_tfds(self._builder, example)["image"])


def _read(
    examples: tf.data.Dataset, parse_image: Callable[[sources.Example], tf.Tensor]
) -> Iterator[tuple[str, bytes]]:
    parse_image = tf.function(parse_image)
    for example in examples:
        try:
            content = parse_image(example).numpy()
        except tf.errors.InvalidArgumentError:
            content = b""  # reported as unreadable
        yield f"{example['name'].numpy().decode()}:{example['number']}", content


def _digest(lines: Iterator[str] | Sequence[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()


class Teacher:
    """A classifier written by `lambdanet export`; `InputError` where a folder has none."""

    def __init__(self, saved_model: str | Path):
        exported = load_classifier(saved_model)
        self._serve = exported.signatures["serving_bytes"]
        self.class_names = exported.class_names  # by label
        self.sha256 = _model_sha256(Path(os.path.expanduser(saved_model)))  # of the graph and weights

    def classify(self, pictures: Sequence[bytes]) -> list[np.ndarray | None]:
        """Returns the float32 probabilities of the classes per picture; None for damaged pictures."""
        try:
            return list(self._probabilities(pictures))
        except tf.errors.OpError:  # a damaged picture fails the whole batch
            return [self._classify_one(content) for content in pictures]

    def _classify_one(self, content: bytes) -> np.ndarray | None:
        try:
            return self._probabilities([content])[0]
        except tf.errors.InvalidArgumentError:
            return None

    def _probabilities(self, pictures: Sequence[bytes]) -> np.ndarray:
        return self._serve(image_bytes=tf.constant(pictures))["probabilities"].numpy()


def _model_sha256(folder: Path) -> str:
    """Returns the hash of the files that the predictions depend on."""
    digest = hashlib.sha256()
    for path in [folder / "saved_model.pb", *sorted((folder / "variables").iterdir())]:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
