# SPDX-License-Identifier: Apache-2.0
"""One's own pictures in class folders: the dataset named `folder`, whose data_dir holds them.

    PICTURES/train/cat/*.jpg    PICTURES/validation/cat/*.jpg
    PICTURES/train/dog/*.jpg    PICTURES/validation/dog/*.jpg

The folders at the top are the splits, those in `train` the classes, in the order of their names. A class
may have folders within it. Files without one of the `ENDINGS` are named and left out, hidden ones ignored.
"""

import os

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, unknown
from lambdanet.training.data.image_bytes import Encoded, is_decodable
from lambdanet.training.data.image_files import ENDINGS, as_decodable, find_pictures
from lambdanet.training.data.shards import WHOLE, Share

NAME = "folder"
LAYOUT = "train/CLASS/*.jpg and validation/CLASS/*.jpg"


class FolderSource:
    """Pictures in `data_dir/SPLIT/CLASS/`, of any size; a `sources.Source`.

    Args:
      recipe: its `train_split` is the folder whose folders are the classes.
      data_dir: the folder of the splits.

    Raises:
      InputError: no such folder, or less than two classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        if data_dir is None:
            raise InputError(f"dataset {NAME} needs --data_dir, the folder of the pictures: {LAYOUT}")
        self._root = os.path.expanduser(data_dir)
        if not os.path.isdir(self._root):
            raise InputError(f"data_dir {self._root!r} is not a directory; accepted: one with {LAYOUT}")
        self.channels = 3
        self.class_names = _folders(os.path.join(self._root, self._split(recipe.train_split)))
        if len(self.class_names) < 2:
            train = os.path.join(self._root, recipe.train_split)
            found = ", ".join(self.class_names) or "none"
            raise InputError(f"the classes in {train!r} are: {found}; accepted: two or more folders in it")

    def num_examples(self, split: str, share: Share = WHOLE) -> int:
        return len(self._files(split)[0][share.index :: share.count])

    def examples(
        self, split: str, seed: tf.Tensor | None, share: Share = WHOLE, first: tf.Tensor | int = 0
    ) -> tf.data.Dataset:
        paths, labels = (found[share.index :: share.count] for found in self._files(split))
        examples = tf.data.Dataset.from_tensor_slices({"name": paths, "label": tf.constant(labels, tf.int64)})
        if seed is not None:
            examples = examples.shuffle(len(paths), seed=seed, reshuffle_each_iteration=False)
        return examples.skip(tf.cast(first, tf.int64))

    def stream(self, split: str) -> tf.data.Dataset:
        examples = self.examples(split, None)
        return examples.shuffle(self.num_examples(split))

    def label(self, example: dict[str, tf.Tensor]) -> tf.Tensor:
        return example["label"]

    def image(self, example: dict[str, tf.Tensor]) -> Encoded:
        contents = tf.io.read_file(example["name"])

        def as_png() -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(as_decodable, [contents], tf.string), [])

        return Encoded(tf.cond(is_decodable(contents), lambda: contents, as_png), self.channels)

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        found = self._pictures(split)
        return [(folder, others, len(paths) + len(others)) for folder, paths, others in found]

    def _split(self, split: str) -> str:
        splits = _folders(self._root)
        if not splits:
            raise InputError(f"data_dir {self._root!r} holds no folders; accepted: one with {LAYOUT}")
        if split not in splits:
            raise unknown(f"split in {self._root!r}", split, splits)
        return split

    def _files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the pictures of a split, in order, and their labels."""
        paths: list[bytes] = []
        labels: list[int] = []
        for label, (folder, pictures, others) in enumerate(self._pictures(split)):
            if others and not pictures:
                raise InputError(
                    f"no file in {folder!r} is a picture, such as {others[0]!r}; "
                    f"accepted: names that end in {', '.join(ENDINGS)}"
                )
            paths += map(os.fsencode, pictures)
            labels += [label] * len(pictures)
        return paths, labels

    def _pictures(self, split: str) -> list[tuple[str, list[str], list[str]]]:
        """Returns the folder of each class in a split, the pictures in it, and the other files."""
        root = os.path.join(self._root, self._split(split))
        there = _folders(root)
        for name in there:
            if name not in self.class_names:
                raise unknown(f"class in {root!r}", name, self.class_names)
        folders = [(name, os.path.join(root, name)) for name in self.class_names]
        return [(path, *(find_pictures(path) if name in there else ([], []))) for name, path in folders]


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
