# SPDX-License-Identifier: Apache-2.0
"""Comparison of a converted classifier with its Keras model, and the pictures for it and for calibration."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import InputError, invalid
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data import image_files, mask_view, preprocess
from lambdanet.training.data.bad_records import Example, Pair
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.sources import Shard

NUM_PICTURES = 64  # to compare the models on
BATCHES = (1, 2, 7)  # the numbers of pictures at a time, in turn
NUM_PARTS = 8  # parts of the evaluation split to take them from
# To calibrate on: the ranges of activations hardly change after the first hundred.
NUM_CALIBRATION = 128
MIN_PICTURES = 32  # that differ: to calibrate on, and for a comparison to say much
# Smallest part of the pictures whose top class must remain with 8-bit activations; with less, their ranges
# were calibrated on other pictures, or the model does not compute in 8 bits.
MIN_EQUAL = 0.8
# Without classes, the largest difference of 8-bit logits, relative to their standard deviation.
MAX_DIFFERENCE = 0.5
# To measure accuracies on, in memory: 150 MB at 224 pixels.
NUM_LABELED = 1000

# uint8 [b, h, w, 3] -> "logits" and another output of the task, [b, n].
Runner = Callable[[np.ndarray], dict[str, np.ndarray]]


class Pictures(NamedTuple):
    """Pictures to compare two models on."""

    images: np.ndarray  # uint8 [n, input_size, input_size, 3]
    name: str  # such as "pictures of digits test"
    labels: np.ndarray | None = None  # classes, integers [n], where they are known


@dataclasses.dataclass(frozen=True)
class Parity:
    """A comparison of a converted model with the Keras model."""

    pictures: str  # their description
    num_images: int
    num_equal: int  # pictures with the same top class in both models, by the logits
    num_equal_probabilities: int  # the same by the probabilities, which tie in 8 bits
    num_classes: int  # top classes of the Keras model; 0: it has no classes
    output: str  # what is compared beside logits, such as "probabilities"
    probability_difference: float  # the largest, of that output
    logit_difference: float  # the largest
    logit_std: float  # the standard deviation of the Keras model's logits
    # Of the Keras model and the converted one, in 0..1, where the classes of the pictures are known.
    accuracies: tuple[float, float] | None = None

    @property
    def is_alike(self) -> bool:
        """Whether a model in 8 bits is still the same, but for roundings."""
        if not self.num_classes:
            return self.logit_difference <= MAX_DIFFERENCE * self.logit_std
        return self.num_equal >= MIN_EQUAL * self.num_images

    def __str__(self) -> str:
        is_weak = self.num_images < MIN_PICTURES or self.num_classes == 1
        end = "; too few pictures, or of one class, to say much" if is_weak else ""
        top = ""
        if self.num_classes:
            top = (
                f"the top class is the same for {self.num_equal}, "
                f"by probabilities for {self.num_equal_probabilities}, "
            )
        return (
            f"compared with Keras on {self.num_images} {self.pictures}: {top}the largest "
            f"difference is {self.probability_difference:.2g} in {self.output} "
            f"and {self.logit_difference:.2g} in logits (standard deviation {self.logit_std:.2g}){end}"
        )


def find_pictures(
    recipe: Recipe, open_data: Callable[[], Dataset], is_needed: bool
) -> Pictures:
    """Returns pictures of the evaluation split; random ones if these are missing and not needed."""
    try:
        return evaluation_pictures(open_data())
    except (InputError, OSError) as error:
        if is_needed:
            raise
        print(
            f"no pictures of {recipe.dataset} {recipe.eval_split} to compare on: {error}"
        )
        return random_pictures(recipe.input_size)


def evaluation_pictures(dataset: Dataset) -> Pictures:
    """Returns up to `NUM_PICTURES` pictures from several parts of the evaluation split.

    The split may be sorted by class. Nothing is downloaded; `InputError` for pictures that are not on disk or
    cannot be read.
    """
    source = dataset.source
    source.check_on_disk()
    split = dataset.recipe.eval_split
    num_shares = max(1, source.num_examples(split) * NUM_PARTS // NUM_PICTURES)
    chosen = sorted({num_shares * part // NUM_PARTS for part in range(NUM_PARTS)})
    parts = [source.examples(split, None, Shard(index, num_shares)) for index in chosen]
    examples = functools.reduce(tf.data.Dataset.concatenate, parts)
    return _read(dataset, examples, split, NUM_PICTURES)._replace(labels=None)


def labeled_pictures(dataset: Dataset) -> tuple[Pictures, Pictures]:
    """Returns pictures to calibrate a run's model on, and labeled ones to measure its accuracy on.

    They are drawn at random, always the same ones, and prepared as in evaluation.

    Args:
      dataset: the dataset of the run, as of `evaluate.open_split`.

    Returns:
      Up to `NUM_CALIBRATION` pictures of `train_split`, and up to `NUM_LABELED` of `eval_split`.

    Raises:
      InputError: the pictures are not on disk, or cannot be read.
    """
    recipe = dataset.recipe
    source = dataset.source
    source.check_on_disk()
    seed = tf.constant(recipe.seed, tf.int64)

    def draw(split: str, count: int) -> Pictures:
        return _read(dataset, source.examples(split, seed), split, count)

    calibration = draw(recipe.train_split, NUM_CALIBRATION)
    return calibration, draw(recipe.eval_split, NUM_LABELED)


def folder_pictures(calibration: str | Path, preprocessing: Preprocessing) -> Pictures:
    """Returns pictures of a folder, up to twice `NUM_CALIBRATION`.

    Args:
      calibration: a folder with pictures in any format that Pillow reads.
      preprocessing: the crop and the size of the model's pictures.

    Raises:
      InputError: it is no folder, or none of its pictures can be read.
    """
    if not Path(calibration).expanduser().is_dir():
        raise invalid("calibration", "a folder of pictures", str(calibration))
    paths = image_files.expand_folders(calibration)
    step = max(1, len(paths) // (2 * NUM_CALIBRATION))
    chosen = paths[::step][: 2 * NUM_CALIBRATION]
    images = []
    for _, image in image_files.read_images(chosen):
        if not isinstance(image, InputError):
            images.append(_as_bytes(preprocessing.square(image)))
    return Pictures(np.array(images), f"pictures of {calibration}")


def separate(
    calibration: Pictures, pictures: Pictures | None
) -> tuple[Pictures, Pictures]:
    """Returns pictures to calibrate on that differ, and those to compare on: by default every other one."""
    images = np.unique(calibration.images, axis=0)
    if pictures is None:
        pictures = Pictures(images[1::2], calibration.name)
        images = images[::2]
    if len(images) < MIN_PICTURES:
        accepted = f"{MIN_PICTURES} or more that differ, beside those to compare on"
        raise invalid(f"{calibration.name} to calibrate on", accepted, len(images))
    return Pictures(images, calibration.name), pictures


def _read(
    dataset: Dataset, examples: tf.data.Dataset, split: str, count: int
) -> Pictures:
    """Returns the first readable pictures of examples, or their central windows; `InputError` without any."""
    recipe = dataset.recipe
    task = dataset.task
    square = preprocess.of_recipe(recipe).square

    def prepare(example: Example) -> Pair:
        image, label = task.pair(dataset.source, example)
        if task.any_size:  # pictures keep their size
            return mask_view.view(image, label, recipe.input_size, "none", (0, 0))
        return _as_bytes(square(image.pixels())), label

    name = f"pictures of {recipe.dataset} {split}"
    prepared = examples.map(prepare).ignore_errors().take(count)
    rows = list(prepared.as_numpy_iterator())
    if not rows:
        raise InputError(f"none of the {name} can be read")
    images, labels = zip(*rows, strict=True)
    shape = (len(images), recipe.input_size, recipe.input_size, 3)
    # Gray becomes RGB.
    return Pictures(np.broadcast_to(images, shape), name, np.array(labels))


def _as_bytes(pixels: tf.Tensor) -> tf.Tensor:
    """Returns pixels in 0..1 as uint8."""
    return tf.cast(tf.round(255.0 * pixels), tf.uint8)


def random_pictures(height: int, width: int | None = None) -> Pictures:
    """Returns `NUM_PICTURES` pictures of noise; without a width, square ones."""
    random = np.random.default_rng(0)
    shape = (NUM_PICTURES, height, width or height, 3)
    return Pictures(random.integers(0, 256, shape, dtype=np.uint8), "random pictures")


def compare(
    outputs: Any,
    classify: Callable[..., Any],
    run: Runner,
    pictures: Pictures,
    batch_size: int | None = None,
) -> Parity:
    """Compares the outputs of a network with those of its converted form, in batches of several sizes.

    Of maps, each pixel counts as a picture.

    Args:
      outputs: those of its task, a `TaskOutputs`.
      classify: uint8 images [b, h, w, 3] -> "logits" and the output of the task, tensors [..., n].
      run: the converted form.
      pictures: the pictures to compare on.
      batch_size: the one size of the batches of the converted form, if it has one.
    """
    rows = []
    sizes = (batch_size,) if batch_size else BATCHES
    ends = np.cumsum(sizes * (1 + len(pictures.images) // sum(sizes)))
    batches = np.split(pictures.images, ends[ends < len(pictures.images)])
    progress = tqdm(
        total=len(pictures.images),
        desc="comparing with Keras",
        disable=None,
        leave=False,
    )
    for images in batches:
        count = len(images)
        expected = classify(tf.constant(images))
        # With copies of pictures in what is left of a batch.
        found = run(np.resize(images, [batch_size or count, *images.shape[1:]]))
        row = []
        for name in ("logits", outputs.output):
            row += [np.array(expected[name]), np.array(found[name])[:count]]
        rows.append([values.reshape(-1, values.shape[-1]) for values in row])
        progress.update(count)
    progress.close()
    logits, found_logits, probabilities, found_probabilities = map(
        np.concatenate, zip(*rows, strict=True)
    )
    classes = logits.argmax(-1)
    found_classes = found_logits.argmax(-1)
    if np.isnan([logits, found_logits]).any():
        raise InputError("it gives outputs that are not numbers (NaN)")
    accuracies = None
    if pictures.labels is not None and outputs.has_one_class:
        keras_accuracy = float(np.mean(classes == pictures.labels))
        found_accuracy = float(np.mean(found_classes == pictures.labels))
        accuracies = (keras_accuracy, found_accuracy)
    return Parity(
        f"{outputs.unit}{pictures.name}",
        len(classes),
        int(np.sum(classes == found_classes)),
        int(np.sum(classes == found_probabilities.argmax(-1))),
        len(np.unique(classes)) if outputs.num_logits else 0,
        outputs.output,
        float(np.abs(probabilities - found_probabilities).max()),
        float(np.abs(logits - found_logits).max()),
        float(logits.std()),
        accuracies,
    )
