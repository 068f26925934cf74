# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures in class folders: the dataset `folder`, whose data_dir holds them.

    PICTURES/train/cat/*.jpg    PICTURES/validation/cat/*.jpg
    PICTURES/train/dog/*.jpg    PICTURES/validation/dog/*.jpg

The top folders are the splits, and the folders in `train` are the classes, in the order of their names. A
class may have nested folders. Files without one of the `ENDINGS` are named and left out; hidden ones are
ignored.
"""

import functools
import os

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import check_known, invalid, unknown
from lambdanet.training.data.image_bytes import Encoded, is_decodable
from lambdanet.training.data.image_files import ENDINGS, as_decodable, find_pictures
from lambdanet.training.data.shards import SINGLE_MACHINE, Shard

NAME = "folder"
LAYOUT = "train/CLASS/*.jpg and validation/CLASS/*.jpg"


class PictureFiles:
    """Picture files of any size with a class each: what a `sources.Source` does with their list.

    Attributes:
      channels: 3, red, green and blue.
      class_names: the name of each class, in the order of the labels.
    """

    channels: int = 3
    class_names: list[str]

    def __init__(self) -> None:
        self._files = functools.cache(self._list_files)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return len(self._files(split)[0][shard.index :: shard.count])

    def examples(
        self, split: str, seed: tf.Tensor | None, shard: Shard = SINGLE_MACHINE, first: tf.Tensor | int = 0
    ) -> tf.data.Dataset:
        paths, labels = (fields[shard.index :: shard.count] for fields in self._files(split))
        examples = tf.data.Dataset.from_tensor_slices({"name": paths, "label": tf.constant(labels, tf.int64)})
        if seed is not None:
            examples = examples.shuffle(len(paths), seed=seed, reshuffle_each_iteration=False)
        return examples.skip(tf.cast(first, tf.int64))

    def label(self, example: dict[str, tf.Tensor]) -> tf.Tensor:
        return example["label"]

    def image(self, example: dict[str, tf.Tensor]) -> Encoded:
        contents = tf.io.read_file(example["name"])

        def as_png() -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(as_decodable, [contents], tf.string), [])

        return Encoded(tf.cond(is_decodable(contents), lambda: contents, as_png), self.channels)

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        return []

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the paths of the pictures of a split, in order, and their labels."""
        raise NotImplementedError


class FolderSource(PictureFiles):
    """Pictures of any size in `data_dir/SPLIT/CLASS/`; a `sources.Source`. Each folder is listed once.

    Args:
      recipe: the recipe, whose `train_split` is the folder with a folder per class.
      data_dir: the folder of the splits.

    Raises:
      InputError: there is no such folder, or it has less than two classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        super().__init__()
        accepted = f"the folder of the pictures, with {LAYOUT}"
        if data_dir is None or not os.path.isdir(os.path.expanduser(data_dir)):
            raise invalid("data_dir", accepted, data_dir)
        self._root = os.path.expanduser(data_dir)
        self._splits = _folders(self._root)
        if not self._splits:
            raise invalid("data_dir", accepted, data_dir, "it has no folders")
        self._pictures = functools.cache(self._find_pictures)
        train = self._split_folder(recipe.train_split)
        self.class_names = _folders(train)
        if len(self.class_names) < 2:
            raise invalid(f"classes in {train!r}", "two or more folders", self.class_names)

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        found = self._pictures(split)
        return [(folder, others, len(paths) + len(others)) for folder, paths, others in found]

    def _split_folder(self, split: str) -> str:
        check_known(f"split in {self._root!r}:", split, self._splits)
        return os.path.join(self._root, split)

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the pictures of a split, in order, and their labels."""
        paths: list[bytes] = []
        labels: list[int] = []
        for label, (folder, pictures, others) in enumerate(self._pictures(split)):
            if others and not pictures:
                raise invalid(f"pictures in {folder!r}", f"names that end in {', '.join(ENDINGS)}", others[0])
            paths += map(os.fsencode, pictures)
            labels += [label] * len(pictures)
        return paths, labels

    def _find_pictures(self, split: str) -> list[tuple[str, list[str], list[str]]]:
        """Returns the folder of each class in a split, its pictures, and its other files."""
        root = self._split_folder(split)
        found = _folders(root)
        for name in found:
            if name not in self.class_names:
                raise unknown(f"class in {root!r}", name, self.class_names)
        folders = [(name, os.path.join(root, name)) for name in self.class_names]
        return [(path, *(find_pictures(path) if name in found else ([], []))) for name, path in folders]


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
