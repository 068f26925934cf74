# SPDX-License-Identifier: Apache-2.0
"""Mixup and CutMix: mixes each training image and its label with another image and label of the batch.

As in timm, a batch is mixed with itself in reverse order, with one share and one rectangle per batch. The
shares of labels and pixels are equal: Model Garden's `MixupAndCutmix` takes it before the rectangle is
cut off at the border, and labels as integers only.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.training.data.augment import rectangle
from lambdanet.training.data.sources import Shard

# Added to the recipe's seed, for other random numbers than the augmentation's.
SEED = 1 << 40
# Added to the seed of a batch, for independent numbers.
CHOICE = [0, 1 << 50]
CENTER = [0, 1 << 51]

# Shape [b, h, w, c] of the images, alpha, seed -> the share of the other image in each pixel, [h, w, 1].
Shares = Callable[[tf.Tensor, float, tf.Tensor], tf.Tensor]


def mix_batches(
    batches: tf.data.Dataset, recipe: Recipe, initial_step: int, shard: Shard
) -> tf.data.Dataset:
    """Returns the batches mixed as in the recipe; the result depends on its seed and the step alone.

    Args:
      batches: normalized images [b, h, w, c], and labels int64 [b] or distributions [b, num_classes].
      recipe: `mixup_alpha` and `cutmix_alpha`; with both, each batch takes one of them by chance.
      initial_step: the step of the first batch, from 0.
      shard: the part of the data in these batches, one for each device of this machine.

    Returns:
      The same images, mixed, and distributions float32 [b, num_classes]; `batches` where both alphas are 0.
    """
    alphas = ((mixup_shares, recipe.mixup_alpha), (cutmix_shares, recipe.cutmix_alpha))
    kinds = [(shares, alpha) for shares, alpha in alphas if alpha]
    if not kinds:
        return batches

    def mix_one(
        number: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        seed = tf.stack(
            [
                tf.constant(recipe.seed + SEED, tf.int64),
                number * shard.count + shard.index,
            ]
        )
        choice = tf.random.stateless_uniform([], seed + CHOICE, 0, len(kinds), tf.int32)
        shape = tf.shape(batch[0])
        draws = [functools.partial(kind, shape, alpha, seed) for kind, alpha in kinds]
        return mix(*batch, tf.switch_case(choice, draws), recipe.num_classes)

    first = initial_step * (shard.replicas // shard.count)
    return batches.enumerate(first).map(mix_one, tf.data.AUTOTUNE)


def mix(
    images: tf.Tensor, labels: tf.Tensor, shares: tf.Tensor, num_classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of a batch and itself in reverse order, weighted pixel by pixel.

    Args:
      images: floats [b, h, w, c].
      labels: integers [b] or distributions [b, num_classes].
      shares: the weight of the other image in each pixel, float32 [h, w, 1]; their mean is the weight of the
        other label.
      num_classes: the number of classes.

    Returns:
      The images, floats [b, h, w, c], and labels, distributions [b, num_classes].
    """
    if labels.dtype.is_integer:
        labels = tf.one_hot(labels, num_classes)
    pixels = tf.cast(shares, images.dtype)
    share = tf.reduce_mean(shares)
    mixed = images * (1 - pixels) + tf.reverse(images, [0]) * pixels
    return mixed, labels * (1 - share) + tf.reverse(labels, [0]) * share


def mixup_shares(shape: tf.Tensor, alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns the same share for all pixels, from Beta(alpha, alpha) (Zhang et al. 2018)."""
    return tf.fill([shape[1], shape[2], 1], _beta(alpha, seed))


def cutmix_shares(shape: tf.Tensor, alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns 1 in a rectangle and 0 elsewhere (Yun et al. 2019).

    Its sides are the image's, scaled by the root of a number from Beta(alpha, alpha); its center is
    any pixel, so the border cuts off a part of some rectangles.
    """
    sizes = tf.cast(shape[1:3], tf.float32)
    lengths = tf.floor(tf.sqrt(_beta(alpha, seed)) * sizes)
    centers = tf.floor(tf.random.stateless_uniform([2], seed + CENTER) * sizes)
    return tf.cast(
        rectangle(sizes, centers - tf.floor(lengths / 2), lengths), tf.float32
    )


def _beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a number from Beta(alpha, alpha); in float64, its two numbers from Gamma are never both 0."""
    first, second = tf.unstack(
        tf.random.stateless_gamma(
            [2], seed, tf.constant(alpha, tf.float64), dtype=tf.float64
        )
    )
    return tf.cast(first / (first + second), tf.float32)
