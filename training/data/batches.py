# SPDX-License-Identifier: Apache-2.0
"""The batches of training, from a step on: images that cannot be read do not move the others.

A batch has its place in the order of an epoch, whatever can be read of it. A run that goes on within an epoch
therefore leaves out what it has seen before anything of that is decoded.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.training.data import preprocess
from lambdanet.training.data.bad_records import BadRecords, Example, filled_up, grouped
from lambdanet.training.data.shards import Share

ENDLESS = 1 << 40  # passes
PER_PASS = 1 << 20  # between the seeds of passes: those of recipes that differ by less never meet


@dataclasses.dataclass(frozen=True)
class Stream:
    """The images of a split, pass after pass, each in a random order of its own.

    Attributes:
      source: of the images.
      split: of the source.
      share: the part that this machine reads.
      batch_size: images in a batch.
      per_pass: images of a pass that are used, the first ones.
      done: images that were used before.
      passes: how many there are.
      seed: of the order and of the changes.
      soft: whether labels are distributions over the classes.
    """

    source: Any  # a `Source`; where labels are soft, a `RecordsSource`
    split: str
    share: Share
    batch_size: int
    per_pass: int
    done: int
    passes: int
    seed: int
    soft: bool = False

    def batches(self, recipe: Recipe, bad_records: BadRecords) -> tf.data.Dataset:
        """Returns the images, uint8, changed at random as the recipe says, and their labels."""

        def prepare(example: Example, key: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            number, place = key
            place = place * self.share.count + self.share.index  # no two machines draw the same
            seed = tf.stack([number * PER_PASS + self.seed, place])
            image = preprocess.for_training(self.source.image(example), recipe, seed)
            return image, (self.source.probabilities if self.soft else self.source.label)(example)

        first_pass, first = divmod(self.done, self.per_pass)
        examples = tf.data.Dataset.range(first_pass, self.passes).flat_map(
            lambda number: self._pass(recipe, number, tf.where(number == first_pass, first, 0))
        )

        def first_of_pass(keys: tuple[tf.Tensor, tf.Tensor]) -> tf.data.Dataset:
            return self._pass(recipe, keys[0][0], tf.constant(0, tf.int64)).take(self.batch_size)

        groups = grouped(examples, prepare, self.batch_size, drop_remainder=True, instead=first_of_pass)
        return bad_records.whole(groups, self.batch_size, recipe.num_classes)

    @tf.autograph.experimental.do_not_convert
    def _pass(self, recipe: Recipe, number: tf.Tensor, first: Any) -> tf.data.Dataset:
        """Returns the examples of a pass from one on, each with the pass and its place there."""
        # The first half of every shuffle's seed, in place of whatever global seed is set; 0 will not do.
        tf.compat.v1.set_random_seed(recipe.seed + 1)
        first = tf.cast(first, tf.int64)
        there = self.source.examples(self.split, number, self.share, first)
        count = self.source.num_examples(self.split, self.share)
        places = tf.data.Dataset.range(first, self.per_pass)
        passes = tf.data.Dataset.from_tensors(number).repeat()
        keys = tf.data.Dataset.zip((passes, places))
        return tf.data.Dataset.zip((filled_up(there, count - first), keys))


def together(parts: list[tf.data.Dataset], num_classes: int) -> tf.data.Dataset:
    """Returns batches that are made up of a batch of each part; labels are distributions if some are."""
    if len(parts) == 1:
        return parts[0]

    def join(*batches: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = zip(*batches, strict=True)
        channels = max(of_part.shape[-1] for of_part in images)
        images = tuple(tf.repeat(of_part, channels // of_part.shape[-1], axis=-1) for of_part in images)
        if any(not of_part.dtype.is_integer for of_part in labels):
            labels = tuple(
                tf.one_hot(of_part, num_classes) if of_part.dtype.is_integer else of_part
                for of_part in labels
            )
        return tf.concat(images, axis=0), tf.concat(labels, axis=0)

    return tf.data.Dataset.zip(tuple(parts)).map(join, tf.data.AUTOTUNE)
