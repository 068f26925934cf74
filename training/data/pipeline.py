# SPDX-License-Identifier: Apache-2.0
"""The data of a recipe, in batches.

Training data is a pure function of (recipe, step): a run that is interrupted and goes on sees the very order
and the very augmentation that it would have seen without the interruption. (Not so with a tf.data service.)
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, unknown
from lambdanet.training.data import class_names as classes
from lambdanet.training.data import folder, preprocess, records, service
from lambdanet.training.data.bad_records import BadRecords, Example, filled_up, grouped
from lambdanet.training.data.batches import ENDLESS, Stream, together
from lambdanet.training.data.folder import FolderSource
from lambdanet.training.data.records import RecordsSource
from lambdanet.training.data.shards import WHOLE, Share
from lambdanet.training.data.sources import Source, TfdsSource

ROLES = ("eval", "train")
PSEUDO_SEED = 1 << 32  # so that pseudo-labelled images come in another order, and are changed otherwise


def load(
    recipe: Recipe,
    role: str,
    data_dir: str | None = None,
    initial_step: int = 0,
    bad_records: BadRecords | None = None,
    share: Share = WHOLE,
    data_service: str | None = None,
) -> tf.data.Dataset:
    """Returns the batches of one split, preparing the dataset first where it is not on disk.

    Args:
      recipe: names the dataset, the splits, the batch size and what is done to the images.
      role: "train": `train_split`, shuffled and augmented, from `initial_step` to the recipe's last epoch,
        whole batches only, as many in each epoch as `steps_per_epoch`. "eval": `eval_split` once, in order,
        with the last partial batch.
      data_dir: where TFDS keeps its datasets (None: its default, `~/tensorflow_datasets`), or the pictures of
        dataset `folder`.
      initial_step: the step to begin with, from 0.
      bad_records: counts the images that cannot be read; None: a fresh count.
      share: the part that this machine reads; batches are of one device. An even share fills up the last
        batches of evaluation with what weighs nothing: see `_padded`.
      data_service: the address of a tf.data service that prepares the training data: see `service`.

    Returns:
      A dataset of (images float32 [b, input_size, input_size, channels], labels int64 [b]), and for the
      evaluation of an even share also weights float32 [b]. Soft pseudo-labels make the labels of training
      distributions, float32 [b, num_classes]; mixed precision makes its images bfloat16.

    Raises:
      InputError: no such dataset, split or directory, or a dataset that does not fit the recipe.

    Example:
      >>> images, labels = next(iter(load(configs.get_recipe("digits"), "eval")))
    """
    if role not in ROLES:
        raise unknown("role", role, ROLES)
    source = open_source(recipe, data_dir)
    bad_records = bad_records or BadRecords()
    bad_records.leave_out(*source.left_out(_split(recipe, role)))
    if role == "eval":
        return _eval(recipe, source, bad_records, share).prefetch(tf.data.AUTOTUNE)
    if data_service is not None:
        return _normalised(
            service.batches(recipe, source, data_service, share, bad_records), recipe
        ).prefetch(tf.data.AUTOTUNE)
    return _train(recipe, source, initial_step, bad_records, share).prefetch(tf.data.AUTOTUNE)


def leave_out(recipe: Recipe, data_dir: str | None, bad_records: BadRecords) -> None:
    """Names the files in the folders of both splits that are no pictures.

    Raises:
      InputError: they are too many.
    """
    source = open_source(recipe, data_dir)
    bad_records.leave_out(*(found for role in ROLES for found in source.left_out(_split(recipe, role))))


def resolve(recipe: Recipe, data_dir: str | None = None) -> Recipe:
    """Returns the recipe with the number of classes of its dataset, where it leaves that open with 0.

    Raises:
      InputError: the dataset cannot be used.
    """
    if recipe.num_classes:
        return recipe
    return dataclasses.replace(recipe, num_classes=len(_open(recipe, data_dir).class_names))


def for_validation(recipe: Recipe) -> Recipe:
    """Returns the recipe whose "eval" is what a run is validated on: its held-out split, where it has one."""
    return dataclasses.replace(recipe, eval_split=recipe.held_out_split or recipe.eval_split)


def class_names(recipe: Recipe, data_dir: str | None = None) -> list[str]:
    """Returns the name of each class, in the order of the labels; the data itself need not be on disk."""
    return list(open_source(recipe, data_dir).class_names)


def num_examples(recipe: Recipe, role: str, data_dir: str | None = None) -> int:
    """Returns how many images the split of a role holds."""
    return _count(recipe, role, open_source(recipe, data_dir))


def steps_per_epoch(recipe: Recipe, data_dir: str | None = None) -> int:
    """Returns how many whole batches one epoch of training has.

    Raises:
      InputError: the training split holds less than one batch.
    """
    return _steps(recipe, open_source(recipe, data_dir))


def eval_steps(recipe: Recipe, data_dir: str | None = None, share: Share = WHOLE) -> int:
    """Returns how many batches of all devices together the evaluation has."""
    return _eval_steps(recipe, open_source(recipe, data_dir), share)


def _train(
    recipe: Recipe, source: Source, initial_step: int, bad_records: BadRecords, share: Share
) -> tf.data.Dataset:
    steps = _steps(recipe, source)
    _count(recipe, "train", source, share)
    devices, num_pseudo = share.replicas // share.count, recipe.num_pseudo_labels
    if num_pseudo % share.replicas:
        raise InputError(
            f"{num_pseudo} images of a batch have pseudo-labels; accepted: a multiple of "
            f"{share.replicas}, the devices"
        )
    size = (recipe.global_batch_size - num_pseudo) // share.replicas
    labelled = Stream(
        source,
        recipe.train_split,
        share,
        batch_size=size,
        per_pass=steps * devices * size,
        done=initial_step * devices * size,
        passes=recipe.epochs,
        seed=recipe.seed,
    )
    parts = [labelled.batches(recipe, bad_records)]
    if num_pseudo:
        more = _pseudo_source(recipe, source.class_names)
        size = num_pseudo // share.replicas
        others = Stream(
            more,
            records.PSEUDO,
            share,
            batch_size=size,
            per_pass=more.num_examples(records.PSEUDO, share),
            done=initial_step * devices * size,
            passes=ENDLESS,
            seed=recipe.seed + PSEUDO_SEED,
            soft=more.soft,
        )
        parts.append(others.batches(recipe, bad_records))
    return _normalised(together(parts, recipe.num_classes), recipe)


def _pseudo_source(recipe: Recipe, class_names: Sequence[str]) -> RecordsSource:
    """Returns the images with pseudo-labels, once their classes are known to be those of the others."""
    if not recipe.pseudo_labels:
        raise InputError(
            "pseudo_labels is empty; accepted: a folder that `lambdanet pseudo-label` wrote, as "
            "--set=pseudo_labels=DIR"
        )
    source = RecordsSource(recipe, recipe.pseudo_labels)
    owner = f"pseudo_labels {recipe.pseudo_labels!r}"
    classes.check_equal(source.class_names, class_names, owner, f"dataset {recipe.dataset}")
    return source


def _normalised(batches: tf.data.Dataset, recipe: Recipe) -> tf.data.Dataset:
    return batches.map(
        lambda images, labels: (preprocess.normalised(images, recipe), labels), tf.data.AUTOTUNE
    )


def _eval(recipe: Recipe, source: Source, bad_records: BadRecords, share: Share) -> tf.data.Dataset:
    preprocessing = preprocess.of_recipe(recipe)

    def prepare(example: Example, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del place
        return preprocessing(source.image(example).whole()), source.label(example)

    count = _count(recipe, "eval", source, share)
    examples = source.examples(recipe.eval_split, None, share)
    pairs = tf.data.Dataset.zip((filled_up(examples, count), tf.data.Dataset.range(count)))
    groups = grouped(pairs, prepare, recipe.global_batch_size)
    images = bad_records.good(groups, recipe.num_classes)
    if not share.even:
        return images
    return _padded(images.unbatch(), recipe, source, share)


def _padded(images: tf.data.Dataset, recipe: Recipe, source: Source, share: Share) -> tf.data.Dataset:
    """Returns whole batches, as many on each device: nothing without a weight fills them up.

    Keras divides a sum of weighted losses by the images in the batches, not by their weights. Those of real
    images are therefore above 1, by as much as the others take away: the loss is the mean over real images.
    (One that cannot be read counts there as a loss of 0; in the accuracy it does not count.)
    """
    steps = _eval_steps(recipe, source, share)
    weight = steps * recipe.global_batch_size / _count(recipe, "eval", source)
    weighted = images.map(lambda image, label: (image, label, tf.constant(weight, tf.float32)))
    nothing = tf.data.Dataset.from_tensors(
        tuple(tf.zeros(spec.shape, spec.dtype) for spec in weighted.element_spec)
    )
    batches = weighted.concatenate(nothing.repeat()).batch(
        recipe.global_batch_size // share.replicas, drop_remainder=True
    )
    return batches.take(steps * share.replicas // share.count)


def _eval_steps(recipe: Recipe, source: Source, share: Share) -> int:
    most = math.ceil(_count(recipe, "eval", source) / share.count)  # that one machine reads
    return math.ceil(most / (recipe.global_batch_size // share.count))


def _open(recipe: Recipe, data_dir: str | None) -> Source:
    if not classes.is_utf8(data_dir or ""):
        raise InputError(f"data_dir must be a path in UTF-8, got {data_dir!r}")
    own: dict[str, Callable[[Recipe, str | None], Source]] = {
        folder.NAME: FolderSource,
        records.NAME: RecordsSource,
    }
    return own.get(recipe.dataset, TfdsSource)(recipe, data_dir)


def open_source(recipe: Recipe, data_dir: str | None) -> Source:
    """Returns the source of a recipe's images, once the two fit each other."""
    source = _open(recipe, data_dir)
    classes.check(source.class_names, f"dataset {recipe.dataset}")
    num_classes, channels = len(source.class_names), source.channels
    if num_classes != recipe.num_classes:
        raise InputError(
            f"num_classes is {recipe.num_classes}; accepted: {num_classes}, as dataset {recipe.dataset} has"
        )
    if channels not in (1, len(recipe.mean)):
        raise InputError(
            f"mean and std have {len(recipe.mean)} channels; accepted: {channels}, as dataset "
            f"{recipe.dataset} has"
        )
    return source


def _split(recipe: Recipe, role: str) -> str:
    return recipe.train_split if role == "train" else recipe.eval_split


def _count(recipe: Recipe, role: str, source: Source, share: Share = WHOLE) -> int:
    """Returns how many images a share of a role's split holds, once the split is known to hold enough."""
    split = _split(recipe, role)
    count = source.num_examples(split)
    if count == 0:
        raise InputError(f"split {split!r} of dataset {recipe.dataset} is empty; accepted: one with images")
    if count < share.count:
        raise InputError(
            f"split {split!r} holds {count} images; accepted: one for each of {share.count} machines"
        )
    return source.num_examples(split, share)


def _steps(recipe: Recipe, source: Source) -> int:
    examples = _count(recipe, "train", source)
    if recipe.num_pseudo_labels:
        _pseudo_source(recipe, source.class_names)  # so that a run without it ends before it begins
    labelled = recipe.global_batch_size - recipe.num_pseudo_labels
    if examples < labelled:
        raise InputError(
            f"global_batch_size is {recipe.global_batch_size}; accepted: at most {examples}, the images of "
            f"split {recipe.train_split!r} of {recipe.dataset}"
        )
    return examples // labelled
