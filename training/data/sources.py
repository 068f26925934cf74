# SPDX-License-Identifier: Apache-2.0
"""Where images come from: the datasets that TensorFlow Datasets knows by name, and what any source offers."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf
import tensorflow_datasets as tfds

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, one_line, unknown
from lambdanet.training.data import digits
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.shards import WHOLE, Share

REGISTERED = (digits.Digits,)  # builders of this project, known to TFDS by name once imported
SHUFFLE_BUFFER = 16384  # examples, still encoded

# What an example holds: "label", int64; "name", how the record is called; and what `image` needs.
Example = dict[str, tf.Tensor]


class Source(Protocol):
    """Labelled images in splits. What a machine reads of one differs by an image at most from the others.

    Attributes:
      channels: of every image, 1 or 3.
      class_names: in the order of the labels.
    """

    channels: int
    class_names: list[str]

    def num_examples(self, split: str, share: Share = WHOLE) -> int:
        """Returns how many images a split holds; raises `InputError` where there is no such split."""
        ...

    def examples(
        self, split: str, seed: tf.Tensor | None, share: Share = WHOLE, first: tf.Tensor | int = 0
    ) -> tf.data.Dataset:
        """Returns the examples of a split, in order or, with a seed (int64 scalar), in a random one.

        Args:
          split: of the source.
          seed: of the order.
          share: the part that this machine reads.
          first: which example of that order comes first.
        """
        ...

    def stream(self, split: str) -> tf.data.Dataset:
        """Returns the examples of a split in a random order, another one each time it is read."""
        ...

    def image(self, example: Example) -> Encoded:
        """Returns the image of an example."""
        ...

    def label(self, example: Example) -> tf.Tensor:
        """Returns the class of an example, int64."""
        ...

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        """Returns the folders of a split: the path, the files that are no pictures, the number of files."""
        ...


class TfdsSource:
    """A dataset of TensorFlow Datasets with an image named "image" and a class named "label".

    Args:
      recipe: names the dataset, and what it has to fit.
      data_dir: where TFDS keeps its datasets; None: its default, `~/tensorflow_datasets`.

    Raises:
      InputError: no such dataset or directory, or a dataset without images and classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        self._builder = open_tfds(recipe.dataset, data_dir)
        features = self._builder.info.features
        kinds = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
        if not all(name in features and isinstance(features[name], kind) for name, kind in kinds.items()):
            raise InputError(
                f"dataset {recipe.dataset} has the features {', '.join(features)}; accepted: an image named "
                "'image' and a class named 'label'"
            )
        self.channels: int = features["image"].shape[-1]
        self.class_names = list(features["label"].names)

    def num_examples(self, split: str, share: Share = WHOLE) -> int:
        return num_examples(self._prepared(), split, share)

    def examples(
        self, split: str, seed: tf.Tensor | None, share: Share = WHOLE, first: tf.Tensor | int = 0
    ) -> tf.data.Dataset:
        examples = self._read(_part(split, share), seed is not None, seed)
        if seed is not None:
            examples = examples.shuffle(SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=False)
        return examples.skip(tf.cast(first, tf.int64))

    def stream(self, split: str) -> tf.data.Dataset:
        return self._read(split, True, None).shuffle(SHUFFLE_BUFFER)

    def image(self, example: Example) -> Encoded:
        return Encoded(example["image"], self.channels)

    def label(self, example: Example) -> tf.Tensor:
        return example["label"]

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        return []

    def _read(self, split: Any, shuffle_files: bool, seed: tf.Tensor | None) -> tf.data.Dataset:
        examples = read_tfds(self._prepared(), split, shuffle_files, seed)
        return examples.map(
            lambda example: {
                "image": example["image"],
                "label": example["label"],
                "name": example["tfds_id"],
            }
        )

    def _prepared(self) -> tfds.core.DatasetBuilder:
        return on_disk(self._builder)


def on_disk(builder: tfds.core.DatasetBuilder) -> tfds.core.DatasetBuilder:
    """Returns a builder, once its data is on disk."""
    if not builder.data_path.exists():
        _prepare(builder)
    return builder


def num_examples(builder: tfds.core.DatasetBuilder, split: str, share: Share = WHOLE) -> int:
    """Returns how many examples a machine's part of a split of TFDS holds.

    Raises:
      InputError: there is no such split.
    """
    try:
        return builder.info.splits[_part(split, share)].num_examples
    except (KeyError, ValueError, AssertionError) as error:
        names = sorted(builder.info.splits)
        if split.partition("[")[0] not in names:
            raise unknown(f"split of dataset {builder.name}", split, names) from None
        raise InputError(f"split {split!r} of {builder.name} cannot be read: {one_line(error)}") from None


def read_tfds(
    builder: tfds.core.DatasetBuilder, split: Any, shuffle_files: bool = False, seed: tf.Tensor | None = None
) -> tf.data.Dataset:
    """Returns the examples of a split of TFDS with their "tfds_id", images as the files that they are."""
    read = tfds.ReadConfig(shuffle_seed=seed, try_autocache=False, skip_prefetch=True, add_tfds_id=True)
    with _quiet("tensorflow"):  # TFDS numbers the records by what TensorFlow calls deprecated
        return builder.as_dataset(
            split=split,
            shuffle_files=shuffle_files,
            decoders={"image": tfds.decode.SkipDecoding()},
            read_config=read,
        )


def _part(split: str, share: Share) -> Any:
    """Returns a machine's part of a split, as TFDS takes it: a run of records, in few files."""
    return split if share.count == 1 else tfds.even_splits(split, share.count)[share.index]


def open_tfds(name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Returns the builder of a dataset of TFDS.

    Raises:
      InputError: there is no such dataset or directory.
    """
    if data_dir is not None:
        data_dir = os.path.expanduser(data_dir)
        if not tf.io.gfile.isdir(data_dir):
            raise InputError(f"data_dir {data_dir!r} is not a directory; accepted: one that exists")
    try:
        if tfds.core.naming.parse_builder_name_kwargs(name)[0].namespace:  # elsewhere, with code from there
            raise ValueError("it is not one of TFDS itself")
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError:
        raise unknown("dataset", name, tfds.list_builders(with_community_datasets=False)) from None
    except (AssertionError, ImportError, ValueError) as error:  # no such version or configuration
        raise InputError(f"dataset {name!r} cannot be loaded: {one_line(error)}") from None


def _prepare(builder: tfds.core.DatasetBuilder) -> None:
    """Writes the dataset to disk.

    Raises:
      InputError: it has to be downloaded by hand, or its folder cannot be made.
    """
    try:
        builder.data_path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"dataset {builder.name} cannot be written to {str(builder.data_path.parent)!r} "
            f"({error.strerror or error}); --data_dir names another folder"
        ) from None
    print(f"preparing dataset {builder.info.full_name} in {builder.data_dir}", flush=True)
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        with _quiet_tfds():
            builder.download_and_prepare(download_config=config)
    except AssertionError as error:
        if not builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            raise
        raise InputError(f"dataset {builder.name} has to be downloaded by hand: {one_line(error)}") from None


@contextlib.contextmanager
def _quiet_tfds() -> Iterator[None]:
    """Keeps off the screen what TFDS prints, retries of downloads, and bars where there is no terminal."""
    bars = sys.stderr.isatty()
    try:
        if not bars:
            tfds.disable_progress_bar()
        with _quiet("urllib3"), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        if not bars:
            tfds.enable_progress_bar()


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keeps the warnings of a logger off the screen."""
    logger = logging.getLogger(name)
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        yield
    finally:
        logger.setLevel(level)
