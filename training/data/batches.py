# SPDX-License-Identifier: Apache-2.0
"""Streams of training batches that start at any step; unreadable images do not shift the sequence.

Every image has a fixed position in the order of its pass, readable or not, so a run that resumes within an
epoch skips what it has seen before decoding it.

A pass reads every image and usually lasts an epoch. With repeated augmentation (Hoffer et al. 2019, Berman et
al. 2019) it lasts longer: with three copies of each image, three epochs, each of a third of the images. In
timm, each epoch draws another third, and copies are on different devices; in lambdanet they follow each
other.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.training.data import preprocess
from lambdanet.training.data.bad_records import BadRecords, Example, prepare_in_groups
from lambdanet.training.data.sources import Shard

FOREVER = 1 << 40  # passes
# Passes of recipes whose seeds differ by less never share a seed.
SEEDS_PER_PASS = 1 << 20

Key = tuple[tf.Tensor, tf.Tensor]  # the pass of an example, and its place in it


@dataclasses.dataclass(frozen=True)
class TrainingStream:
    """The images of a split, in passes of different random orders."""

    source: Any  # a `Source`; with soft labels, a `RecordsSource`
    split: str
    seed: int  # of the orders and of the augmentation
    shard: Shard
    batch_size: int
    images_done: int  # before the first batch
    images_per_pass: int  # the first of its order, copies counted
    num_passes: int
    copies: int = 1  # of each image in a pass, each with its own augmentation
    soft: bool = False  # whether labels are distributions over the classes

    def batches(self, recipe: Recipe, bad_records: BadRecords) -> tf.data.Dataset:
        """Returns batches of the images, uint8, augmented as in the recipe, and their labels."""

        def prepare(example: Example, key: Key) -> tuple[tf.Tensor, tf.Tensor]:
            label = self.source.probabilities if self.soft else self.source.number
            return self._augmented(recipe, example, key), label(example)

        first_pass, first = divmod(self.images_done, self.images_per_pass)
        examples = tf.data.Dataset.range(first_pass, self.num_passes).flat_map(
            lambda number: self._pass(
                recipe, number, tf.where(number == first_pass, first, 0)
            )
        )

        def first_of_pass(keys: Key) -> tf.data.Dataset:
            return self._pass(recipe, keys[0][0], tf.constant(0, tf.int64)).take(
                self.batch_size
            )

        size = self.batch_size
        groups = prepare_in_groups(
            examples, prepare, size, drop_remainder=True, fallback=first_of_pass
        )
        return bad_records.full_batches(groups, size, recipe.num_classes)

    @tf.autograph.experimental.do_not_convert
    def first_images(self, recipe: Recipe, count: int) -> tf.data.Dataset:
        """Returns the images of the first `count` examples as in `batches`, without those that fail."""
        examples = self._pass(recipe, tf.constant(0, tf.int64), 0).take(count)
        return examples.map(
            lambda example, key: self._augmented(recipe, example, key)
        ).ignore_errors()

    def _augmented(self, recipe: Recipe, example: Example, key: Key) -> tf.Tensor:
        pass_number, place = key
        # Machines draw different seeds.
        place = place * self.shard.count + self.shard.index
        seed = tf.stack([pass_number * SEEDS_PER_PASS + self.seed, place])
        return preprocess.for_training(self.source.image(example), recipe, seed)

    @tf.autograph.experimental.do_not_convert
    def _pass(self, recipe: Recipe, number: tf.Tensor, first: Any) -> tf.data.Dataset:
        """Returns the examples of a pass from one on, each with the pass and its place in it."""
        # Fixes the graph-level seed of every shuffle; must be nonzero.
        tf.compat.v1.set_random_seed(recipe.seed + 1)
        copies = self.copies
        first = tf.cast(first, tf.int64)
        examples = self.source.examples(self.split, number, self.shard, first // copies)
        if copies > 1:  # `flat_map` takes 20 microseconds per example
            examples = examples.flat_map(
                lambda example: tf.data.Dataset.from_tensors(example).repeat(copies)
            )
            examples = examples.skip(first % copies)
        places = tf.data.Dataset.range(first, self.images_per_pass)
        keys = tf.data.Dataset.zip(
            (tf.data.Dataset.from_tensors(number).repeat(), places)
        )
        return tf.data.Dataset.zip((examples, keys))


def concat_batches(parts: list[tf.data.Dataset], num_classes: int) -> tf.data.Dataset:
    """Joins a batch of each part to one batch.

    Args:
      parts: datasets of (images [b, h, w, c], labels), where labels are int64 [b] or float32 distributions
        [b, num_classes]. A single channel is repeated where another part has more.
      num_classes: the number of classes.

    Returns:
      A dataset of (images, labels); all labels are distributions if those of a part are.
    """
    if len(parts) == 1:
        return parts[0]

    def concat(*batches: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = zip(*batches, strict=True)
        channels = max(part.shape[-1] for part in images)
        images = tuple(
            tf.repeat(part, channels // part.shape[-1], axis=-1) for part in images
        )
        if any(not part.dtype.is_integer for part in labels):
            labels = tuple(
                tf.one_hot(part, num_classes) if part.dtype.is_integer else part
                for part in labels
            )
        return tf.concat(images, axis=0), tf.concat(labels, axis=0)

    return tf.data.Dataset.zip(tuple(parts)).map(concat, tf.data.AUTOTUNE)
