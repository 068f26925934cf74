# SPDX-License-Identifier: Apache-2.0
"""Gray pictures in files of MNIST's format (idx): MNIST, Fashion-MNIST, KMNIST, EMNIST, or your own.

    PICTURES/train-images-idx3-ubyte.gz    PICTURES/t10k-images-idx3-ubyte.gz
    PICTURES/train-labels-idx1-ubyte.gz    PICTURES/t10k-labels-idx1-ubyte.gz

The splits are "train" and "test", whose files may also be named `test-`; a part of one is written as in TFDS,
`train[:20%]`. Files may be compressed by gzip, and their names may begin with a set's name:
`emnist-letters-train-images-idx3-ubyte.gz` is of the dataset `emnist/letters`.

The classes are those of the dataset in TFDS, `--set=dataset=mnist`; of the dataset `idx` they are the lines
of classes.txt in the folder or, without that file, the numbers of the labels.
"""

import functools
import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_known, invalid, one_line, unreadable
from lambdanet.training.data import class_names
from lambdanet.training.data.image_bytes import Decoded
from lambdanet.training.data.records import CLASSES
from lambdanet.training.data.sources import (
    SINGLE_MACHINE,
    Example,
    Shard,
    Source,
    TfdsSource,
)

NAME = "idx"
LAYOUT = "train-images-idx3-ubyte and train-labels-idx1-ubyte, and the same of t10k, or with .gz"
# The first four bytes: zeros, the type uint8, and the number of axes.
MAGIC = bytes([0, 0, 8])

_IMAGES = re.compile(
    r"((?P<set>.+)-)?(?P<split>train|t10k|test)-images[-.]idx3-ubyte(\.gz)?"
)
_SPLITS = {"train": "train", "t10k": "test", "test": "test"}


class IdxSource(Source):
    """The pictures of a folder, held in memory; a `sources.Source`. Each split is read once.

    `InputError` where the folder has no such files, or those of several sets of which none is the recipe's
    dataset, where a file is damaged or of another kind, and where pictures and labels do not belong together.
    """

    channels = 1

    def __init__(self, recipe: Recipe, data_dir: str | None):
        found = {} if data_dir is None else find_sets(data_dir)
        if not found:
            raise invalid("data_dir", f"a folder with {LAYOUT}", data_dir)
        name = next(iter(found))
        if len(found) > 1:
            name = recipe.dataset.replace("/", "-")
        if name not in found:
            hint = "--set=dataset=NAME chooses one, such as emnist/letters"
            raise invalid("data_dir", "a folder with one set", sorted(found), hint)
        self._root = Path(str(data_dir)).expanduser()
        self._images = found[name]
        self._read = functools.cache(self._read_split)
        self.class_names = self._class_names(recipe)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return len(self._part(split, shard)[1])

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        pixels, labels, begin = self._part(split, shard)
        file = self._images[self._name_of(split)].name
        count = len(labels)
        places = tf.data.Dataset.range(count)
        if seed is not None:
            places = places.shuffle(count, seed=seed, reshuffle_each_iteration=False)
        images = tf.convert_to_tensor(pixels)
        numbers = tf.convert_to_tensor(labels, tf.int64)

        def read(place: tf.Tensor) -> Example:
            return {
                "name": tf.constant(file),
                "number": place + begin,
                "pixels": images[place],
                "label": numbers[place],
            }

        return places.skip(tf.cast(first, tf.int64)).map(read)

    def image(self, example: Example) -> Decoded:
        return Decoded(example["pixels"])

    def label(self, example: Example) -> tf.Tensor:
        return example["label"]

    def _class_names(self, recipe: Recipe) -> list[str]:
        if recipe.dataset != NAME:
            return TfdsSource(recipe, None).class_names
        if (self._root / CLASSES).exists():
            return class_names.read_names(self._root / CLASSES)
        labels = self._read("train")[1]
        return [str(number) for number in range(int(labels.max()) + 1)]

    def _name_of(self, split: str) -> str:
        """Returns the name of a split without its part; `InputError` where there is no such split."""
        name = split.partition("[")[0]
        check_known(f"split in {str(self._root)!r}:", name, sorted(self._images))
        return name

    def _part(self, split: str, shard: Shard) -> tuple[np.ndarray, np.ndarray, int]:
        """Returns the pictures and labels of a machine's part of a split, and the number of its first one."""
        name = self._name_of(split)
        pixels, labels = self._read(name)
        if len(labels) and labels.max() >= len(self.class_names):
            accepted = f"below {len(self.class_names)}, the number of classes"
            owner = f"labels of {str(self._images[name])!r}"
            raise invalid(owner, accepted, int(labels.max()))
        try:
            of_split = {name: tfds.core.SplitInfo(name, [len(labels)], 0)}
            (chosen,) = tfds.core.ReadInstruction.from_spec(split).to_absolute(of_split)
        except (AssertionError, ValueError) as error:
            raise InputError(
                f"split {split!r} of {str(self._root)!r} cannot be read: {one_line(error)}"
            ) from None
        begin = chosen.from_ or 0
        end = len(labels) if chosen.to is None else chosen.to
        count = end - begin
        first = begin + count * shard.index // shard.count
        last = begin + count * (shard.index + 1) // shard.count
        return pixels[first:last], labels[first:last], first

    def _read_split(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pictures [n, h, w, 1] and labels [n] of all of a split, uint8."""
        images = self._images[name]
        names = images.name.replace("images", "labels").replace("idx3", "idx1")
        labels = images.with_name(names)
        if not labels.exists():
            raise invalid(f"labels of {str(images)!r}", "a file", str(labels))
        pixels = read_idx(images, 3)[..., np.newaxis]
        numbers = read_idx(labels, 1)
        if len(pixels) != len(numbers):
            accepted = f"{len(pixels)}, as in {images.name}"
            raise invalid(f"labels in {str(labels)!r}", accepted, len(numbers))
        return pixels, numbers


def find_sets(data_dir: str) -> dict[str, dict[str, Path]]:
    """Returns the files with pictures in a folder, by the names of their sets ("" for none) and splits.

    Of a file with and without compression, the one without is taken.
    """
    root = Path(data_dir).expanduser()
    found: dict[str, dict[str, Path]] = {}
    if not root.is_dir():
        return found
    for path in sorted(root.iterdir(), reverse=True):
        match = _IMAGES.fullmatch(path.name)
        if match is not None:
            splits = found.setdefault(match["set"] or "", {})
            splits[_SPLITS[match["split"]]] = path
    return found


def read_idx(path: Path, rank: int) -> np.ndarray:
    """Returns the array in a file of the format idx, uint8.

    Args:
      path: the file; one that ends in ".gz" is decompressed.
      rank: the number of axes that it must have.

    Raises:
      InputError: the file cannot be read, has another magic number, or is shorter or longer than its header
        says.
    """
    try:
        contents = path.read_bytes()
        if path.suffix == ".gz":
            contents = gzip.decompress(contents)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None
    magic = MAGIC + bytes([rank])
    if contents[:4] != magic:
        accepted = f"{magic.hex()}, of {rank} axes of uint8"
        raise invalid(f"magic number of {str(path)!r}", accepted, contents[:4].hex())
    begin = 4 + 4 * rank
    header = contents[4:begin].ljust(4 * rank, b"\0")
    shape = [int(size) for size in np.frombuffer(header, ">u4")]
    expected = begin + math.prod(shape)
    if len(contents) != expected:
        accepted = f"{expected}, as its header says for an array {shape}"
        raise invalid(f"bytes in {str(path)!r}", accepted, len(contents))
    return np.frombuffer(contents, np.uint8, offset=begin).reshape(shape)
