# SPDX-License-Identifier: Apache-2.0
"""The dataset of a recipe: opened, checked and counted once, and read for evaluation.

The way of a picture of training is in `stream`.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lambdanet.backend.tensors import ceil_div
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import BALANCED
from lambdanet.core.errors import InputError, invalid
from lambdanet.models.weights.hub import fetch_dataset
from lambdanet.models.weights.repositories import PREFIX
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import (
    BadRecords,
    Example,
    Pair,
    names_of,
    prepare_in_groups,
    zeros_of,
)
from lambdanet.training.data.class_names import (
    IGNORED,
    Classes,
    check_equal,
    check_names,
    find_columns,
    is_utf8,
    normalized,
)
from lambdanet.training.data.image_files import file_size, find_copies
from lambdanet.training.data.records import RecordsSource
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard, Source
from lambdanet.training.data.stream import (
    Part,
    prefetch_as_written,
    training_batches,
)
from lambdanet.training.data.task import Task, task_of

MAX_CACHED_BYTES = 1 << 28  # of an evaluation split
MAX_NAMED = 3  # pictures in a line
MAX_WEIGHT = 100  # of a balanced class, in units of the smallest one
MAX_COMPARED = 200_000  # pictures; to look for copies among more takes minutes
# Added to the seed, for another order and augmentation of pseudo-labeled images.
PSEUDO_SEED = 1 << 32
FOREVER = 1 << 40  # passes


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The images of a recipe. The source is opened once, and each split is counted once.

    Attributes:
      recipe: the recipe, with the dataset's number of classes where that was 0.
      data_dir: the folder of the data, or their repository with its commit; None: the default of TFDS.
      source: the labeled images.
      class_names: the name of each class, in the order of the labels; the images need not be on disk.
      eval_split: the split that `eval` reads.
      bad_records: the count of unreadable images.

    Example:
      >>> dataset = Dataset.open(configs.get_recipe("digits"))
      >>> images, labels = next(iter(dataset.train()))
    """

    recipe: Recipe
    data_dir: str | None
    source: Source
    class_names: list[str]
    eval_split: str
    bad_records: BadRecords

    @classmethod
    def open(
        cls,
        recipe: Recipe,
        data_dir: str | None = None,
        bad_records: BadRecords | None = None,
        eval_split: str | None = None,
        classes: Classes | None = None,
        some_classes: bool = False,
        made_from_training: Sequence[str] = (),
        white_class: bool | None = None,
    ) -> "Dataset":
        """Opens the dataset of a recipe. Nothing is downloaded before the images are counted or read.

        Args:
          recipe: the dataset, its splits, the batch size, and the preprocessing.
          data_dir: the folder of TFDS (None: its default, `~/tensorflow_datasets`), or the folder of the
            pictures or records, or their repository on the hub, `hf:USER/REPO`.
          bad_records: the count of unreadable images; None: a new one.
          eval_split: the split for evaluation; None: the recipe's `eval_split`.
          classes: the classes that the dataset must have, in the order of the labels that are read; None, or
            without names: those of the dataset, in its own order.
          some_classes: whether the dataset may have only some of them, as for evaluation.
          made_from_training: the pictures of training of which a run makes its evaluation split, as
            `Source.made_from_training`; where there are none of them, others.
          white_class: what a run decided, as `Source.white_class`; None: the source decides.

        Raises:
          InputError: there is no such dataset or folder, or the dataset does not fit the recipe.
          ConnectionError: the repository is not in the cache and cannot be fetched.
        """
        if not is_utf8(data_dir or ""):
            raise invalid("data_dir", "a path in UTF-8", data_dir)
        folder = data_dir
        if data_dir and data_dir.startswith(PREFIX):
            if recipe.dataset != "folder":
                accepted = "folder, for data of the hub"
                raise invalid("dataset", accepted, recipe.dataset)
            folder, data_dir = fetch_dataset(data_dir, recipe.train_split)
        source = task_of(recipe).open_source(folder)
        if recipe.sampling == BALANCED and not source.knows_labels:
            accepted = f"shuffled: labels of {recipe.dataset} are read with the images"
            raise invalid("sampling", accepted, recipe.sampling)
        source.make_evaluation(made_from_training)
        if white_class is not None:
            source.white_class = white_class
        names: Sequence[str] = source.class_names
        if classes and classes.names:
            names = match_classes(source, classes, "the data", some_classes)
        if not recipe.num_classes:
            recipe = dataclasses.replace(recipe, num_classes=len(names))
        _check_fit(source, names, recipe)
        eval_split = recipe.eval_split if eval_split is None else eval_split
        return cls(
            recipe,
            data_dir,
            source,
            list(names),
            eval_split,
            bad_records or BadRecords(),
        )

    @functools.cached_property
    def class_weights(self) -> tuple[float, ...]:
        """The weight of each class in the loss; empty: 1.

        Balanced ones are n / (k n_c), for n_c of the n images (or pixels of masks) of training and k classes,
        so that their mean over the images is 1, and at most `MAX_WEIGHT` times the smallest one. A class
        without an image has the smallest one, and a class without a pixel 0, with a line.
        """
        recipe = self.recipe
        if not isinstance(recipe.class_weights, str):
            return recipe.class_weights
        present, _ = self._label_counts
        weights = present.sum() / (recipe.num_classes * np.maximum(present, 1))
        weights = np.minimum(weights, MAX_WEIGHT * weights.min())
        weights[present == 0] = 0 if self.task.any_size else weights.min()
        pairs = zip(self.class_names, present, strict=True)
        if absent := [name for name, count in pairs if not count]:
            given = f"which gets the weight {weights[present == 0][0]:.3g}"
            print(f"{recipe.train_split} has no {', '.join(absent)}, {given}")
        return tuple(weights.tolist())

    @functools.cached_property
    def positive_weights(self) -> tuple[float, ...]:
        """The factor of each class on the loss where it is present; empty: 1.

        Balanced ones are the numbers of images of training without and with the class, divided; 1 where there
        are none of one kind.
        """
        if not isinstance(self.recipe.positive_weights, str):
            return self.recipe.positive_weights
        present, absent = self._label_counts
        weights = absent / np.maximum(present, 1)
        return tuple(np.where(present * absent > 0, weights, 1.0).tolist())

    @functools.cached_property
    def _label_counts(self) -> np.ndarray:
        """The numbers of images of training with and without each class, [2, num_classes]."""
        labels = (
            self.source.examples(self.recipe.train_split, None)
            .map(functools.partial(self.task.read, self.source))
            .ignore_errors()
        )
        counts = np.zeros([2, self.recipe.num_classes])
        padding = tf.cast(IGNORED, labels.element_spec.dtype)
        size = 1 if self.task.any_size else 64
        batches = labels.padded_batch(size, padding_values=padding)
        for batch in batches.as_numpy_iterator():
            counts += self.task.count(batch)
        if not counts[0].any():
            where = f"labels of {self.recipe.train_split} of {self.recipe.dataset}"
            raise InputError(f"{where} must have a class that is present, to balance")
        return counts

    @functools.cached_property
    def task(self) -> Task:
        """The task of the recipe."""
        return task_of(self.recipe)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """The number of full batches in an epoch of training; `InputError` where there is none."""
        recipe = self.recipe
        windows = recipe.windows_per_image
        count = windows * self.num_examples(recipe.train_split)
        labeled = recipe.global_batch_size - recipe.num_pseudo_labels
        if count < labeled:
            split = f"split {recipe.train_split!r} of {recipe.dataset}"
            if windows > 1:
                split += f", times {windows} windows"
            accepted = f"at most {count}, the number of images in {split}"
            # A power of two, for four steps or more.
            few = 1 << (max(count // 4, 1).bit_length() - 1)
            hint = f"such as --set=global_batch_size={few}"
            raise invalid("global_batch_size", accepted, recipe.global_batch_size, hint)
        return count // labeled

    def eval_steps(self, shard: Shard = SINGLE_MACHINE) -> int:
        """Returns the number of batches in an evaluation on all devices together."""
        largest_part = ceil_div(self.num_examples(self.eval_split), shard.count)
        return ceil_div(largest_part, self.recipe.global_batch_size // shard.count)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        """Returns the number of images in a machine's part of a split.

        Raises:
          InputError: there is no such split, or it has fewer images than there are machines.
        """
        count = self.source.num_examples(split)
        if count == 0:
            raise invalid(
                f"split of dataset {self.recipe.dataset}", "one with images", split
            )
        if count < shard.count:
            raise invalid(
                f"images in split {split!r}",
                f"at least {shard.count}, one per machine",
                count,
            )
        return self.source.num_examples(split, shard)

    def check(self, compare: bool = True) -> None:
        """Finds errors before training starts, and prints files that are left out, and copies of pictures.

        Args:
          compare: whether to look for copies, of a picture with two labels or in two splits.

        Raises:
          InputError: a split is missing or too small, also that of `evaluate`, too many files are no
            pictures, or the pseudo-labels cannot be used.
        """
        if len(self.class_names) < 2:  # which no classifier is exported for
            classes = f"classes of dataset {self.recipe.dataset}"
            raise invalid(classes, "two or more", self.class_names)
        # Counts the images of training, opens the pseudo-labels.
        self._parts(SINGLE_MACHINE)
        train = self.recipe.train_split
        splits = [self.eval_split]
        for split in (self.recipe.eval_split, train):
            if split not in splits:
                splits.append(split)
        for split in splits:
            self.num_examples(split)
            self._leave_out_files(split, train)
            self.source.check_readable(split)
        if train in (self.eval_split, self.recipe.eval_split):
            print(
                f"the accuracy is measured on {train}, the pictures of training",
                flush=True,
            )
        places = {
            # Equal masks are files of one size.
            path: (split, file_size(label) if isinstance(label, str) else label)
            for split in splits
            for path, label in self.source.files(split)
        }
        copies = find_copies(places) if compare and len(places) <= MAX_COMPARED else []
        if copies:
            names = ", ".join(map(repr, copies[:MAX_NAMED]))
            print(
                f"{len(copies)} pictures have two labels or are in two splits, such as {names}: the accuracy "
                "says less",
                flush=True,
            )

    def train(
        self, initial_step: int = 0, shard: Shard = SINGLE_MACHINE, count: int = -1
    ) -> tf.data.Dataset:
        """Returns the shuffled and augmented batches of training, from a step to the recipe's last epoch.

        Args:
          initial_step: the first step, from 0.
          shard: the part that this machine reads; a batch is for one device.
          count: the number of batches; -1: all.

        Returns:
          A dataset of (images float32 [b, size, size, channels], labels int64 [b]), where the recipe's
          `size_in_training` is size. Soft pseudo-labels, mixup and CutMix make the labels distributions,
          float32 [b, num_classes]; mixed precision makes the images bfloat16.

        Raises:
          InputError: as `check`.
        """
        self._leave_out_files(self.recipe.train_split)
        return training_batches(
            self._parts(shard), self.bad_records, initial_step
        ).take(count)

    def first_pairs(self, count: int) -> tf.data.Dataset:
        """Returns the first images of training, up to `count`, without unreadable ones.

        They are as a step sees them before mixup, CutMix and normalization, uint8 [size, size, c], with their
        labels.
        """
        return self._parts(SINGLE_MACHINE)[0].first_pairs(count)

    def eval(
        self, shard: Shard = SINGLE_MACHINE, cache: bool = False, whole: bool = False
    ) -> tf.data.Dataset:
        """Returns the batches of `eval_split`, once and in order.

        Args:
          shard: the part that this machine reads. With `pad_last_batch`, the last batches are filled up with
            images of weight 0, see `_pad`.
          cache: whether to keep the batches of a small split in memory, for the evaluation of each epoch.
          whole: whether each batch is a whole picture of any size, for a task with `any_size`.

        Returns:
          A dataset of (images float32 [b, input_size, input_size, channels], labels int64 [b]), with
          `pad_last_batch` also of weights float32 [b].

        Raises:
          InputError: there is no such split, it is too small, or too many files are no pictures.
        """
        self._leave_out_files(self.eval_split)
        recipe = self.recipe
        source = self.source

        def prepare(example: Example, place: tf.Tensor) -> Pair:
            del place
            return self.task.evaluation_pair(source, example, whole)

        count = self.num_examples(self.eval_split, shard)
        examples = source.examples(self.eval_split, None, shard)
        pairs = tf.data.Dataset.zip((examples, tf.data.Dataset.range(count)))
        size = 1 if whole else recipe.global_batch_size
        groups = prepare_in_groups(pairs, prepare, size)
        batches = self.bad_records.valid_only(groups, recipe.num_classes)
        if shard.pad_last_batch:
            batches = self._pad(batches.unbatch(), shard)
        cached = (
            cache
            and 4 * count * len(recipe.mean) * recipe.input_size**2 <= MAX_CACHED_BYTES
        )
        return prefetch_as_written(
            batches.cache() if cached else batches, autotune=not cached
        )

    def eval_names(self) -> list[str]:
        """Returns the names of the images that `eval` gave, in its order, after it was read."""
        bad = set(self.bad_records.names)
        examples = self.source.examples(self.eval_split, None)
        names = []
        for encoded in examples.map(names_of).as_numpy_iterator():
            name = encoded.decode(errors="replace")
            if name not in bad:
                names.append(name)
        return names

    @functools.cached_property
    def _pseudo_labels(self) -> RecordsSource:
        """The images with pseudo-labels; `InputError` where their classes differ from the dataset's."""
        folder = self.recipe.pseudo_labels
        if not folder:
            hint = "--set=pseudo_labels=DIR sets it"
            raise invalid(
                "pseudo_labels",
                "a folder that `lambdanet pseudo-label` wrote",
                folder,
                hint,
            )
        names = self.class_names
        classes = Classes(f"dataset {self.recipe.dataset}", len(names), names)
        source = RecordsSource(self.recipe, folder, "pseudo_labels")
        match_classes(source, classes, f"pseudo_labels {folder!r}")
        return source

    def _parts(self, shard: Shard) -> list[Part]:
        """Returns the parts of every batch: the images of the dataset, and those with pseudo-labels."""
        recipe = self.recipe
        num_pseudo = recipe.num_pseudo_labels
        labeled = recipe.global_batch_size - num_pseudo
        per_pass = self.num_examples(recipe.train_split, shard)  # at least one
        per_epoch = self.steps_per_epoch * labeled // shard.count
        if recipe.windows_per_image == 1:
            per_pass = per_epoch
        if num_pseudo % shard.replicas:
            accepted = f"a multiple of {shard.replicas}, the number of devices"
            raise invalid("images with pseudo-labels per batch", accepted, num_pseudo)
        own = Part(
            self.task,
            self.source,
            recipe.train_split,
            recipe.seed,
            shard,
            size=labeled // shard.replicas,
            images_per_pass=per_pass,
            num_passes=ceil_div(
                recipe.epochs * per_epoch, per_pass * recipe.repeated_augmentation
            ),
        )
        if not num_pseudo:
            return [own]
        source = self._pseudo_labels
        pseudo = Part(
            self.task,
            source,
            records.PSEUDO,
            recipe.seed + PSEUDO_SEED,
            shard,
            size=num_pseudo // shard.replicas,
            images_per_pass=source.num_examples(records.PSEUDO, shard),
            num_passes=FOREVER,
        )
        return [own, pseudo]

    def _pad(self, images: tf.data.Dataset, shard: Shard) -> tf.data.Dataset:
        """Returns full batches, the same number for each device, padded with images of weight 0.

        Keras divides the sum of weighted losses by the number of images in a batch, not by their weights.
        The weights of real images are therefore above 1, so that the loss is the mean over real images.
        (An unreadable image counts as a loss of 0; in the accuracy it does not count.)
        """
        steps = self.eval_steps(shard)
        batch_size = self.recipe.global_batch_size
        weight = steps * batch_size / self.num_examples(self.eval_split)
        weighted = images.map(
            lambda image, label: (image, label, tf.constant(weight, tf.float32))
        )
        padded = weighted.concatenate(zeros_of(weighted.element_spec).repeat())
        batches = padded.batch(batch_size // shard.replicas, drop_remainder=True)
        return batches.take(steps * shard.replicas // shard.count)

    def _leave_out_files(self, *splits: str) -> None:
        self.bad_records.leave_out(
            *(found for split in splits for found in self.source.left_out(split))
        )


def match_classes(
    source: Source, classes: Classes, owner: str, some: bool = False
) -> Sequence[str]:
    """Sets the `numbers` of a source to the order of other classes, and prints a line where it differs.

    Args:
      source: the images.
      classes: the classes in the order wanted.
      owner: what has the images, for messages.
      some: whether the source may have only some of the classes, as for evaluation.

    Returns:
      The names of the classes in their order.

    Raises:
      InputError: its own names are repeated, no names, or other ones.
    """
    check_names(source.class_names, "the data")
    own = normalized(source.class_names)
    wanted = normalized(classes.names)
    missing = len(set(wanted) - set(own))
    if own == wanted or set(own) - set(wanted) or (missing and not some):
        check_equal(source.class_names, classes.names, owner, classes.owner)
        return source.class_names
    which = f"{len(own)} of the {len(wanted)} classes" if missing else "the classes"
    print(
        f"the data has {which} of {classes.owner} in another order: matched by name",
        flush=True,
    )
    source.numbers = find_columns(source.class_names, classes.names)
    return classes.names


def _check_fit(source: Source, names: Sequence[str], recipe: Recipe) -> None:
    """Rejects a dataset with other classes or channels than the recipe's."""
    dataset = f"dataset {recipe.dataset}"
    check_names(names, dataset)
    if len(names) != recipe.num_classes:
        raise invalid(
            "num_classes",
            f"{len(names)}, as in {dataset}",
            recipe.num_classes,
        )
    if source.channels not in (1, len(recipe.mean)):
        raise invalid(
            "channels of mean and std",
            f"{source.channels}, as in {dataset}",
            len(recipe.mean),
        )
