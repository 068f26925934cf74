# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder`, in class folders.

    PICTURES/train/cat/*.jpg    PICTURES/validation/cat/*.jpg
    PICTURES/train/dog/*.jpg    PICTURES/validation/dog/*.jpg

The top folders are the splits, and the folders in `train` are the classes, in the order of their names. A
class may have nested folders. Files without one of the `ENDINGS`, and what systems make, are named and left
out; hidden ones are ignored. Without any folder but `train`, one of five pictures of each class, in the order
of their names, is for evaluation, and the others are for training.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_known, invalid, unknown
from lambdanet.training.data.bad_records import Example, is_of_system
from lambdanet.training.data.class_names import normalized
from lambdanet.training.data.image_bytes import Encoded, is_decodable
from lambdanet.training.data.image_files import (
    ENDINGS,
    as_decodable,
    find_pictures,
    read_image,
)
from lambdanet.training.data.sources import SINGLE_MACHINE, LeftOut, Shard, Source

NAME = "folder"
LAYOUT = "train/CLASS/*.jpg and validation/CLASS/*.jpg"
# One of five pictures is for evaluation where there is no folder for it.
HELD_OUT_STRIDE = 5

# The path of a folder, its pictures, and its other files.
ClassFolder = tuple[str, list[str], list[str]]


class PictureFiles(Source):
    """Picture files of any size with a label each: what a `sources.Source` does with their list."""

    label_type = tf.int64

    def __init__(self, recipe: Recipe) -> None:
        self.channels = 1 if len(recipe.mean) == 1 else 3
        self._files = functools.cache(self._list_files)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return len(self._files(split)[0][shard.index :: shard.count])

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        paths, labels = (
            fields[shard.index :: shard.count] for fields in self._files(split)
        )
        examples = tf.data.Dataset.from_tensor_slices(
            {"name": paths, "label": tf.constant(labels, self.label_type)}
        )
        if seed is not None:
            examples = examples.shuffle(
                len(paths), seed=seed, reshuffle_each_iteration=False
            )
        return examples.skip(tf.cast(first, tf.int64))

    def label(self, example: Example) -> tf.Tensor:
        return example["label"]

    def image(self, example: Example) -> Encoded:
        contents = tf.io.read_file(example["name"])

        def as_png() -> tf.Tensor:
            return tf.ensure_shape(
                tf.numpy_function(as_decodable, [contents], tf.string), []
            )

        return Encoded(
            tf.cond(is_decodable(contents), lambda: contents, as_png), self.channels
        )

    def check_readable(self, split: str) -> None:
        for path in map(os.fsdecode, self._files(split)[0]):
            try:
                read_image(path)
                return
            except InputError as error:
                problem = error
        raise InputError(
            f"no picture of split {split!r} can be read; the last: {problem}"
        )

    def files(self, split: str) -> list[tuple[str, Any]]:
        paths, labels = self._files(split)
        return list(zip(map(os.fsdecode, paths), labels, strict=True))

    def _list_files(self, split: str) -> tuple[list[bytes], list[Any]]:
        """Returns the paths of the pictures of a split, in order, and their labels."""
        raise NotImplementedError


class FolderSource(PictureFiles):
    """Pictures of any size in `data_dir/SPLIT/CLASS/`; a `sources.Source`. Each folder is listed once.

    `InputError` where there is no such folder, or the recipe's `train_split` in it has less than two classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        super().__init__(recipe)
        self._root = os.path.expanduser(data_dir or "")
        if not os.path.isdir(self._root):
            accepted = f"the folder of the pictures, with {LAYOUT}"
            raise invalid("data_dir", accepted, data_dir)
        self._splits = _folders(self._root)
        self._every = functools.cache(self._all_pictures)
        self._pictures = functools.cache(self._find_pictures)
        self._train = recipe.train_split
        self._eval = recipe.eval_split
        if self._train not in self._splits:
            hint = f"train_split is {self._train!r}"
            raise invalid(f"folders in {self._root!r}", LAYOUT, self._splits, hint)
        train = self._split_folder(self._train)
        self.class_names = _folders(train)
        # Splits in the folder of a split, as some archives have them.
        nested = os.path.join(train, self._train)
        is_nested = self._train in self.class_names and len(_folders(nested)) > 1
        if is_nested or len(self.class_names) < 2:
            accepted = "two or more folders of pictures"
            raise invalid(f"classes in {train!r}", accepted, self.class_names)

    def left_out(self, split: str) -> list[LeftOut]:
        split = self._train if self._is_made(split) else split
        found = self._pictures(split)
        left_out = [
            (folder, others, len(paths) + len(others))
            for folder, paths, others in found
        ]
        root = self._split_folder(split)
        names = os.listdir(root)
        of_system = [
            os.path.join(root, name) for name in sorted(names) if is_of_system(name)
        ]
        return [*left_out, (root, of_system, len(names))]

    def hold_out(self, names: Sequence[str]) -> None:
        """Holds out these; or some of each class, where no folder but that of training has a class."""
        if self._eval in self._splits:
            return
        if not any(os.path.exists(os.path.join(self._root, name)) for name in names):
            classes = set(normalized(self.class_names))
            for split in self._splits:
                folders = _folders(os.path.join(self._root, split))
                if split != self._train and classes.intersection(normalized(folders)):
                    return
            names = [
                os.path.relpath(path, self._root)
                for _, pictures, _ in self._every(self._train)
                for path in held_out(pictures)
            ]
        self.held_out = names

    def _split_folder(self, split: str) -> str:
        check_known(f"split in {self._root!r}:", split, self._splits)
        return os.path.join(self._root, split)

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the pictures of a split, in order, and their labels."""
        paths: list[bytes] = []
        labels: list[int] = []
        for label, (folder, pictures, others) in enumerate(self._pictures(split)):
            if others and not pictures:
                raise invalid(
                    f"pictures in {folder!r}",
                    f"names that end in {', '.join(ENDINGS)}",
                    others[0],
                )
            if not pictures and split == self._train:
                hint = "remove the folder, or put pictures in it"
                raise invalid(
                    f"class {self.class_names[label]!r}",
                    "one with pictures",
                    folder,
                    hint,
                )
            paths += map(os.fsencode, pictures)
            labels += [label] * len(pictures)
        return paths, labels

    def _is_made(self, split: str) -> bool:
        """Returns whether a split is made of pictures of training, as there is no folder for it."""
        return split == self._eval and len(self.held_out) > 0

    def _find_pictures(self, split: str) -> list[ClassFolder]:
        """Returns the folder of each class in a split, its pictures, and its other files."""
        is_made = self._is_made(split)
        every = self._every(self._train if is_made else split)
        held = {os.path.join(self._root, name) for name in self.held_out}
        found = []
        for folder, pictures, others in every:
            kept = [path for path in pictures if (path in held) == is_made]
            found.append((folder, kept, [] if is_made else others))
        if is_made:
            total = sum(len(pictures) for _, pictures, _ in every)
            number = sum(len(pictures) for _, pictures, _ in found)
            print(
                f"no folder {split!r} in {self._root!r}: {split} is {number} of {total} pictures of "
                f"{self._train}, some of each class",
                flush=True,
            )
        return found

    def _all_pictures(self, split: str) -> list[ClassFolder]:
        """Returns the same without the split that is made of the pictures for training."""
        root = self._split_folder(split)
        names = _folders(root)
        folders = dict(zip(normalized(names), names, strict=True))
        classes = dict(zip(normalized(self.class_names), self.class_names, strict=True))
        for form, name in folders.items():
            if form not in classes:
                raise unknown(f"class in {root!r}", name, self.class_names)
        found: list[ClassFolder] = []
        for form, name in classes.items():
            path = os.path.join(root, folders.get(form, name))
            found.append(
                (path, *(find_pictures(path) if form in folders else ([], [])))
            )
        return found


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(
        name for name in names if not name.startswith(".") and not is_of_system(name)
    )


def held_out(pictures: list[str]) -> list[str]:
    """Returns the pictures of a class that are held out where there is no folder for evaluation.

    One of `HELD_OUT_STRIDE` by their order, the last where there are fewer, and none of a single picture.
    """
    few = pictures[1:][-1:]
    return pictures[HELD_OUT_STRIDE - 1 :: HELD_OUT_STRIDE] or few
