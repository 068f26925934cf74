# SPDX-License-Identifier: Apache-2.0
"""The way of a picture: from a place in a random order to a batch on its device.

1. `Part.examples` gives an example its pass and its place in it; both depend on the step alone.
2. `prepare_picture` derives a seed from them, reads the file or record and the label, decodes the view of
   training, and changes colors.
3. Examples are prepared in groups, one for each batch. Others of a group take the places of those that fail.
4. Batches are normalized, joined with those of other parts, mixed and prefetched.

Batches of training depend on the recipe and the step alone: a resumed run reads the same images in the same
order, with the same augmentation, as one without an interruption.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from lambdanet.training.data import augment, preprocess
from lambdanet.training.data.bad_records import (
    BadRecords,
    Example,
    Pair,
    prepare_in_groups,
)
from lambdanet.training.data.records import PSEUDO
from lambdanet.training.data.sources import Shard
from lambdanet.training.data.task import Task

# Passes of recipes whose seeds differ by less never share a seed.
SEEDS_PER_PASS = 1 << 20

Key = tuple[tf.Tensor, tf.Tensor]  # the pass of an example, and its place in it


def training_batches(
    parts: "list[Part]", bad_records: BadRecords, initial_step: int
) -> tf.data.Dataset:
    """Returns the batches of a device, from a step to the recipe's last epoch; see the steps of this module.

    Args:
      parts: the parts of every batch.
      bad_records: the count of unreadable images.
      initial_step: the first step, from 0.
    """
    recipe = parts[0].task.recipe
    batches = []
    for part in parts:
        examples = part.examples(initial_step)
        # Of each, in parallel: seed, read, label, view, change.
        groups = prepare_in_groups(
            examples, part.prepare_picture, part.size, part.first_of_pass
        )
        full = bad_records.full_batches(groups, part.size, recipe.num_classes)
        batches.append(
            full.map(
                lambda images, labels: (preprocess.normalize(images, recipe), labels),
                tf.data.AUTOTUNE,
            )
        )
    joined = join_batches(batches, recipe.num_classes)
    mixed = augment.mix_batches(joined, recipe, initial_step, parts[0].shard)
    return prefetch_as_written(mixed)


@dataclasses.dataclass(frozen=True)
class Part:
    """The images of a split that are a fixed number of every batch, in passes of different random orders.

    Every image has a fixed position in the order of its pass, readable or not, so a run that resumes within
    an epoch skips what it has seen before decoding it.

    A pass reads every image and usually lasts an epoch. With repeated augmentation (Hoffer et al. 2019,
    Berman et al. 2019) it lasts longer: with three copies of each image, three epochs, each of a third of
    the images. In timm, each epoch draws another third, and copies are on different devices; in lambdanet
    they follow each other. With several windows per image, a pass has one of each image, and an epoch has
    several passes.
    """

    task: Task
    source: Any  # a `Source`; with soft labels, a `RecordsSource`
    split: str
    seed: int  # of the orders and of the augmentation
    shard: Shard
    size: int  # images in a batch of one device
    images_per_pass: int  # the first of its order, copies not counted
    num_passes: int

    def prepare_picture(self, example: Example, key: Key) -> Pair:
        """Returns an image as training sees it, not normalized, uint8 [size, size, c], and its label."""
        pass_number, place = key
        # Machines draw different seeds.
        place = place * self.shard.count + self.shard.index
        seed = tf.stack([pass_number * SEEDS_PER_PASS + self.seed, place])
        image, label = self.task.pair(self.source, example)
        if self.split == PSEUDO and self.source.soft:
            label = self.source.probabilities(example)
        pixels, label = self.task.view(image, label, seed)
        return preprocess.change_pixels(pixels, self.task.recipe, seed), label

    def examples(self, initial_step: int) -> tf.data.Dataset:
        """Returns the examples from a step on, each with its pass and its place in it."""
        copies = self.task.recipe.repeated_augmentation
        images_done = initial_step * self.size * self.shard.replicas // self.shard.count
        first_pass, first = divmod(images_done, self.images_per_pass * copies)
        return tf.data.Dataset.range(first_pass, self.num_passes).flat_map(
            lambda number: self._pass(number, tf.where(number == first_pass, first, 0))
        )

    def first_of_pass(self, keys: Key) -> tf.data.Dataset:
        """Returns the examples that replace a group of which none can be read."""
        return self._pass(keys[0][0], 0).take(self.size)

    @tf.autograph.experimental.do_not_convert
    def first_pairs(self, count: int) -> tf.data.Dataset:
        """Returns the pairs of the first `count` examples, not normalized, without those that fail."""
        examples = self._pass(tf.constant(0, tf.int64), 0).take(count)
        return examples.map(self.prepare_picture).ignore_errors()

    @tf.autograph.experimental.do_not_convert
    def _pass(self, number: tf.Tensor, first: Any) -> tf.data.Dataset:
        """Returns the examples of a pass from one on, each with the pass and its place in it."""
        recipe = self.task.recipe
        # Fixes the graph-level seed of every shuffle; must be nonzero.
        tf.compat.v1.set_random_seed(recipe.seed + 1)
        copies = recipe.repeated_augmentation
        first = tf.cast(first, tf.int64)
        examples = self.source.examples(self.split, number, self.shard, first // copies)
        if copies > 1:  # `flat_map` takes 20 microseconds per example
            examples = examples.flat_map(
                lambda example: tf.data.Dataset.from_tensors(example).repeat(copies)
            )
            examples = examples.skip(first % copies)
        places = tf.data.Dataset.range(first, self.images_per_pass * copies)
        numbers = tf.data.Dataset.from_tensors(number).repeat()
        keys = tf.data.Dataset.zip((numbers, places))
        return tf.data.Dataset.zip((examples, keys))


def join_batches(parts: list[tf.data.Dataset], num_classes: int) -> tf.data.Dataset:
    """Joins a batch of each part to one batch.

    Args:
      parts: datasets of (images [b, h, w, c], labels), where labels are int64 [b] or float32 distributions
        [b, num_classes].
      num_classes: the number of classes.

    Returns:
      A dataset of (images, labels); all labels are distributions if those of a part are.
    """
    if len(parts) == 1:
        return parts[0]

    def concat(*batches: Pair) -> Pair:
        images, labels = zip(*batches, strict=True)
        if any(not part.dtype.is_integer for part in labels):
            labels = tuple(
                tf.one_hot(part, num_classes) if part.dtype.is_integer else part
                for part in labels
            )
        return tf.concat(images, axis=0), tf.concat(labels, axis=0)

    return tf.data.Dataset.zip(tuple(parts)).map(concat, tf.data.AUTOTUNE)


def prefetch_as_written(
    batches: tf.data.Dataset, autotune: bool = True
) -> tf.data.Dataset:
    """Prepares batches before they are asked for, in the steps as written.

    TensorFlow's search for steps to merge finds none, and takes a tenth of a second for each iterator. An
    iterator that tunes itself may wait a second where it is deleted, as Keras does in each evaluation.
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = autotune
    return batches.prefetch(tf.data.AUTOTUNE if autotune else 2).with_options(options)
