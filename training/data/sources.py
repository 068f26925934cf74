# SPDX-License-Identifier: Apache-2.0
"""The interface of the sources of labeled images, and the source of pictures that are listed in rows.

`folder.rows_of_class_folders`, `tables.rows_of_table` and `masks.rows_of_mask_folders` make the rows. A
picture is read from its file, or from a row group of a Parquet file (`parquet_source`).
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from lambdanet.backend.tensors import ceil_div
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import BALANCED
from lambdanet.core.errors import InputError, invalid, unknown
from lambdanet.training.data.bad_records import Example
from lambdanet.training.data.image_bytes import Encoded, is_decodable
from lambdanet.training.data.image_files import as_decodable, read_image

# A folder, its files that are left out, and the number of all of its files.
LeftOut = tuple[str, list[str], int]


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of the data that one of several machines reads; by default there is one machine."""

    index: int = 0  # the number of the machine
    count: int = 1  # the number of machines
    replicas: int = 1  # the number of training devices on all machines together
    # Whether evaluation also has full batches, the same number per device.
    pad_last_batch: bool = False


SINGLE_MACHINE = Shard()


class Source(Protocol):
    """Labeled images in splits. The parts of a split for different machines differ in size by one at most."""

    channels: int  # of every image, 1 or 3
    class_names: list[str]  # in the order of the labels
    # Of each class the number in another order, such as that of a run; empty: its place in `class_names`. A
    # task reads labels in that order.
    numbers: Sequence[int | None] = ()
    soft: bool = False  # whether the examples have probabilities
    knows_labels: bool = False  # before the images are read, in any order
    # The pictures of training of which the evaluation split is made, as it has no folder: their paths from
    # the data_dir on.
    made_from_training: Sequence[str] = ()
    white_class: Any = False  # whether 255 is the second of two classes in masks
    # Of each class in masks; empty: they have numbers.
    colors: Sequence[Sequence[int]] = ()

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        """Returns the number of images in a split; raises `InputError` where there is no such split."""

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        """Returns the examples of a machine's part of a split, from the place `first` of their order on.

        The order is fixed or, with a seed (int64 scalar), random.
        """

    def image(self, example: Example) -> Encoded:
        """Returns the image of an example."""

    def label(self, example: Example) -> tf.Tensor:
        """Returns the label of an example, for a class its place in `class_names`, int64."""

    def left_out(self, split: str) -> list[LeftOut]:
        """Returns the path of each folder, its files that are no pictures, and its number of files."""
        return []

    def check_readable(self, split: str) -> None:
        """Raises `InputError` where none of the picture files of a split can be read."""
        return

    def files(self, split: str) -> list[tuple[str, Any]]:
        """Returns the path and label of each picture file; none where images are in other files.

        A label that is a text is the path of a file.
        """
        return []

    def check_on_disk(self) -> None:
        """Raises `InputError` where reading the images would download them."""
        return

    def make_evaluation(self, names: Sequence[str]) -> None:
        """Makes the evaluation split from pictures of training, where the data have none.

        Args:
          names: the pictures of a run, as `made_from_training`; where none of them exists, others are taken.
        """
        return


class Row(NamedTuple):
    """A labeled picture.

    Attributes:
      picture: the path of its file, or PATH:GROUP:PLACE of a row in a row group of a Parquet file.
      label: the number of its class, a number for each class, or the path of its mask.
      split: the split that it is in.
    """

    picture: str
    label: Any
    split: str


class RowSource(Source):
    """Pictures of any size in rows; a `Source`. The rows of each split are found once.

    Args:
      recipe: the number of channels.
      path: the table or folder that lists the pictures, for messages.
      root: the folder that the paths in `listed` are relative to.
      listed: the rows of all splits, with labels as `label_of` takes them.
    """

    label_type = tf.int64
    knows_labels = True

    def __init__(self, recipe: Recipe, path: str, root: str, listed: list[Row]):
        self.channels = 1 if len(recipe.mean) == 1 else 3
        self.rows = functools.cache(self.find_rows)
        self._path = path
        self._root = root
        self._listed = listed
        self._seed = recipe.seed
        self._is_balanced = recipe.sampling == BALANCED

    def find_rows(self, split: str) -> list[Row]:
        """Returns the rows of a split, in order, with the paths and labels that are read."""
        found = []
        for row in self.select(split):
            picture = os.path.join(self._root, row.picture)
            found.append(row._replace(picture=picture, label=self.label_of(row)))
        return found

    def select(self, split: str) -> list[Row]:
        """Returns the listed rows of a split; `InputError` where there are none."""
        rows = [row for row in self._listed if row.split == split]
        if not rows:
            splits = {row.split for row in self._listed}
            raise unknown(f"split in {self._path!r}:", split, splits)
        return rows

    def label_of(self, row: Row) -> Any:
        """Returns the label of a listed row as it is read."""
        return row.label

    def check_listed(self) -> None:
        """Raises `InputError` for less than two classes, or where the first file does not exist."""
        if len(self.class_names) < 2:
            raise invalid(
                f"classes in {self._path!r}", "two or more labels", self.class_names
            )
        first = os.path.join(self._root, self._listed[0].picture)
        if not os.path.isfile(first):
            raise invalid(
                f"first file in {self._path!r}", "a picture below the data_dir", first
            )

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return len(self.rows(split)[shard.index :: shard.count])

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        rows = self.rows(split)[shard.index :: shard.count]
        labels = [_encoded(row.label) for row in rows]
        columns = {
            "name": [_encoded(row.picture) for row in rows],
            "label": tf.constant(labels, self.label_type),
        }
        if self._is_balanced and seed is not None:
            classes = places_of_classes([row.label for row in rows])
            draw = functools.partial(draw_balanced, classes, len(rows))
            seeds = tf.stack([self._seed, seed, shard.index])
            places = tf.numpy_function(draw, [seeds], tf.int64)
            places = tf.ensure_shape(places, [len(rows)])
            columns = {name: tf.gather(columns[name], places) for name in columns}
            seed = None
        return self.read_columns(columns, seed, tf.cast(first, tf.int64))

    def read_columns(self, columns: Example, seed: Any, first: Any) -> tf.data.Dataset:
        """Returns the examples of rows, of which `columns` has the names and labels."""
        examples = tf.data.Dataset.from_tensor_slices(columns)
        if seed is not None:
            examples = examples.shuffle(
                len(columns["name"]), seed=seed, reshuffle_each_iteration=False
            )
        return examples.skip(first)

    def label(self, example: Example) -> tf.Tensor:
        return example["label"]

    def image(self, example: Example) -> Encoded:
        contents = (
            example["contents"]
            if "contents" in example
            else tf.io.read_file(example["name"])
        )

        def as_png() -> tf.Tensor:
            return tf.ensure_shape(
                tf.numpy_function(as_decodable, [contents], tf.string), []
            )

        return Encoded(
            tf.cond(is_decodable(contents), lambda: contents, as_png), self.channels
        )

    def check_readable(self, split: str) -> None:
        for path, _ in self.files(split):
            try:
                read_image(path)
                return
            except InputError as error:
                problem = error
        raise InputError(
            f"no picture of split {split!r} can be read; the last: {problem}"
        )

    def files(self, split: str) -> list[tuple[str, Any]]:
        return [(row.picture, row.label) for row in self.rows(split)]


def places_of_classes(labels: Sequence[Any]) -> list[np.ndarray]:
    """Returns the places of the pictures of each class that has any.

    Args:
      labels: the numbers of classes [n], or of each class 1 where it is present [n, classes]. Then those
        without a class are one more.
    """
    found = np.array(labels)
    if found.ndim == 1:
        classes = [np.flatnonzero(found == label) for label in np.unique(found)]
    else:
        present = found == 1
        columns = [*present.T, ~present.any(axis=1)]
        classes = [np.flatnonzero(column) for column in columns]
    return [places for places in classes if len(places)]


def draw_balanced(
    classes: list[np.ndarray], count: int, seeds: np.ndarray
) -> np.ndarray:
    """Returns the places of random pictures, int64 [count]: first their class, each with equal probability.

    All pictures of a class are drawn, in a random order, before one of them is drawn again.

    Args:
      classes: what `places_of_classes` returns.
      count: the number of pictures.
      seeds: int64 [n], none below 0.
    """
    generator = np.random.default_rng(seeds)
    drawn = generator.integers(len(classes), size=count)
    places = np.zeros(count, np.int64)
    for number, pictures in enumerate(classes):
        turns = np.flatnonzero(drawn == number)
        rounds = np.tile(pictures, (ceil_div(len(turns), len(pictures)), 1))
        order = generator.permuted(rounds, axis=1).ravel()
        places[turns] = order[: len(turns)]
    return places


def _encoded(value: Any) -> Any:
    """Returns a path in the bytes of its file system, and any other value as it is."""
    return os.fsencode(value) if isinstance(value, str) else value
