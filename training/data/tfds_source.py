# SPDX-License-Identifier: Apache-2.0
"""The source for datasets of TensorFlow Datasets (TFDS).

The dataset `digits` of scikit-learn needs no download: importing this module registers it with TFDS.
"""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import file_adapters

from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import InputError, invalid, one_line, unknown
from lambdanet.training.data.bad_records import Example
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.records import number_records
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard, Source

SHUFFLE_BUFFER = 16384  # examples, still encoded
# One in five of the digits of each class, in the order of the source, is in the test split.
TEST_STRIDE = 5
# What to do without a network, by the name of a dataset.
OFFLINE = {
    "fashion_mnist": "; Debian's package dataset-fashion-mnist has it, see docs/how-to/tfrecords.md"
}


class TfdsSource(Source):
    """The dataset of a recipe in TensorFlow Datasets, with an image named "image" and a class named "label".

    `InputError` where there is no such dataset or folder, or the dataset has no images or classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        self._builder = open_tfds(recipe.dataset, data_dir)
        features = self._builder.info.features
        kinds = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
        if not all(
            name in features and isinstance(features[name], kind)
            for name, kind in kinds.items()
        ):
            accepted = "an image named 'image' and a class named 'label'"
            raise invalid(
                f"features of dataset {recipe.dataset}", accepted, list(features)
            )
        self.channels: int = features["image"].shape[-1]
        self.class_names = list(features["label"].names)

    def check_on_disk(self) -> None:
        path = self._builder.data_path
        if not path.exists():
            raise InputError(
                f"dataset {self._builder.name} is not on disk: {str(path)!r} does not exist"
            )

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return num_examples(prepare_on_disk(self._builder), split, shard)

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        examples = read_tfds(
            prepare_on_disk(self._builder), _part(split, shard), seed is not None, seed
        )
        if seed is not None:
            examples = examples.shuffle(
                SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=False
            )
        return examples.skip(tf.cast(first, tf.int64))

    def image(self, example: Example) -> Encoded:
        return Encoded(parse_tfds(self._builder, example)["image"], self.channels)

    def label(self, example: Example) -> tf.Tensor:
        return parse_tfds(self._builder, example)["label"]


def prepare_on_disk(builder: tfds.core.DatasetBuilder) -> tfds.core.DatasetBuilder:
    """Writes the data of a builder to disk where it is not there yet, and returns the builder.

    `InputError` where it has to be downloaded by hand, or its folder cannot be made.
    """
    if builder.data_path.exists():
        # Another process may have written it.
        builder.info.read_from_directory(builder.data_path)
        return builder
    try:
        builder.data_path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"dataset {builder.name} cannot be written to {str(builder.data_path.parent)!r} "
            f"({error.strerror or error}); --data_dir names another folder"
        ) from None
    print(
        f"preparing dataset {builder.info.full_name} in {builder.data_dir}", flush=True
    )
    try:
        # Another process was faster.
        with _quiet_tfds(), contextlib.suppress(FileExistsError):
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(try_download_gcs=False)
            )
    except AssertionError as error:
        if not builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            raise
        raise InputError(
            f"dataset {builder.name} has to be downloaded by hand: {one_line(error)}"
        ) from None
    except OSError as error:  # also of the network
        hint = OFFLINE.get(builder.name, "")
        raise OSError(
            f"dataset {builder.name} cannot be prepared: {one_line(error)}{hint}"
        ) from None
    builder.info.read_from_directory(builder.data_path)
    return builder


def num_examples(
    builder: tfds.core.DatasetBuilder, split: str, shard: Shard = SINGLE_MACHINE
) -> int:
    """Returns the number of examples in a machine's part of a split of TFDS."""
    try:
        return builder.info.splits[_part(split, shard)].num_examples
    except (KeyError, ValueError, AssertionError) as error:
        names = sorted(builder.info.splits)
        if split.partition("[")[0] not in names:
            raise unknown(f"split of dataset {builder.name}", split, names) from None
        raise InputError(
            f"split {split!r} of {builder.name} cannot be read: {one_line(error)}"
        ) from None


def read_tfds(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    shuffle_files: bool = False,
    seed: tf.Tensor | None = None,
) -> tf.data.Dataset:
    """Returns the examples of a split of TFDS, in the order of `as_dataset`, as `number_records` does."""
    files = builder.info.splits[split].file_instructions
    rows = [(os.fspath(file.filename), file.skip, file.take) for file in files]
    parts = tf.data.Dataset.from_tensor_slices(
        tuple(map(np.array, zip(*rows, strict=True)))
    )
    if shuffle_files:
        parts = parts.shuffle(len(files), seed=seed)
    open_file = file_adapters.ADAPTER_FOR_FORMAT[builder.info.file_format].make_tf_data
    return parts.interleave(
        lambda path, first, count: number_records(open_file(path), path, first, count),
        cycle_length=1 if builder.info.disable_shuffling else 16,
        block_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def parse_tfds(
    builder: tfds.core.DatasetBuilder, example: Example
) -> dict[str, tf.Tensor]:
    """Returns the fields of an example of `read_tfds`; the image stays encoded."""
    decoders = {"image": tfds.decode.SkipDecoding()}
    return builder.info.features.deserialize_example(
        example["record"], decoders=decoders
    )


def _part(split: str, shard: Shard) -> Any:
    """Returns a machine's part of a split for TFDS: a contiguous run of records, in few files."""
    return (
        split if shard.count == 1 else tfds.even_splits(split, shard.count)[shard.index]
    )


def open_tfds(name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
    """Returns the builder of a dataset of TFDS; `InputError` where there is no such dataset or folder."""
    if data_dir is not None:
        data_dir = os.path.expanduser(data_dir)
        if not tf.io.gfile.isdir(data_dir):
            raise invalid("data_dir", "an existing folder", data_dir)
    try:
        # Code from elsewhere.
        if tfds.core.naming.parse_builder_name_kwargs(name)[0].namespace:
            raise ValueError("it is not one of TFDS itself")
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError:
        raise unknown(
            "dataset", name, tfds.list_builders(with_community_datasets=False)
        ) from None
    # No such version or configuration.
    except (AssertionError, ImportError, ValueError) as error:
        raise InputError(
            f"dataset {name!r} cannot be loaded: {one_line(error)}"
        ) from None


@contextlib.contextmanager
def _quiet_tfds() -> Iterator[None]:
    """Hides the output of TFDS, retries of downloads, and progress bars where there is no terminal."""
    bars = sys.stderr.isatty()
    logger = logging.getLogger("urllib3")
    level = logger.level
    try:
        if not bars:
            tfds.disable_progress_bar()
        logger.setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
        if not bars:
            tfds.enable_progress_bar()


class Digits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8x8 gray pixels, with the splits "train" (1442 images) and "test" (355)."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            description="Scanned handwritten digits, 8x8 pixels in 17 gray levels, from scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(8, 8, 1), encoding_format="png"
                    ),
                    "label": tfds.features.ClassLabel(
                        names=[str(digit) for digit in range(10)]
                    ),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            disable_shuffling=False,
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[Any]]:
        del dl_manager  # nothing to download
        return {
            "train": self._generate_examples(test=False),
            "test": self._generate_examples(test=True),
        }

    def _generate_examples(self, test: bool) -> Iterator[tuple[str, dict[str, object]]]:
        from sklearn import datasets  # needed to prepare the data, not to read it

        images, labels = datasets.load_digits(return_X_y=True)
        images = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
        seen = [0] * 10  # images of each class so far
        for index, (image, label) in enumerate(
            zip(images, labels.tolist(), strict=True)
        ):
            seen[label] += 1
            if (seen[label] % TEST_STRIDE == 0) == test:
                yield f"{index:04d}", {"image": image, "label": label}
