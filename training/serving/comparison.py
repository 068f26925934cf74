# SPDX-License-Identifier: Apache-2.0
"""Comparison of a converted classifier with its Keras model, on pictures of the evaluation split."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError
from lambdanet.training.data import folder, preprocess, records, sources
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.sources import Shard
from lambdanet.training.run import model_dir as model_dirs

NUM_PICTURES = 64  # to compare the models on
BATCHES = (1, 2, 7)  # the numbers of pictures at a time, in turn
NUM_PARTS = 8  # parts of the evaluation split to take them from

# uint8 [b, h, w, 3] -> "logits" and "probabilities", [b, num_classes].
Runner = Callable[[np.ndarray], dict[str, np.ndarray]]


class Pictures(NamedTuple):
    """Pictures to compare two models on."""

    images: np.ndarray  # uint8 [n, input_size, input_size, 3]
    name: str  # such as "pictures of digits test"


@dataclasses.dataclass(frozen=True)
class Parity:
    """A comparison of a converted model with the Keras model."""

    pictures: str  # their description
    num_images: int
    num_equal: int  # pictures with the same top class in both models
    probability_difference: float  # the largest
    logit_difference: float  # the largest
    logit_std: float  # the standard deviation of the Keras model's logits

    def __str__(self) -> str:
        return (
            f"compared with Keras on {self.num_images} {self.pictures}: the top class is the same for "
            f"{self.num_equal}, the largest difference is {self.probability_difference:.2g} in probabilities "
            f"and {self.logit_difference:.2g} in logits (standard deviation {self.logit_std:.2g})"
        )


def find_pictures(
    model_dir: str | Path, recipe: Recipe, data_dir: str | None
) -> Pictures:
    """Returns pictures of the evaluation split; random ones if these are missing and `data_dir` is None."""
    try:
        return evaluation_pictures(
            recipe, model_dirs.find_data_dir(model_dir, data_dir)
        )
    except (InputError, OSError) as error:
        if data_dir is not None:
            raise
        print(
            f"no pictures of {recipe.dataset} {recipe.eval_split} to compare on: {error}"
        )
        return random_pictures(recipe.input_size)


def evaluation_pictures(recipe: Recipe, data_dir: str | None) -> Pictures:
    """Returns up to `NUM_PICTURES` pictures from several parts of the evaluation split.

    The split may be sorted by class. Nothing is downloaded; `InputError` for pictures that are not on disk or
    cannot be read.
    """
    split = recipe.eval_split
    name = f"pictures of {recipe.dataset} {split}"
    if recipe.dataset not in (folder.NAME, records.NAME):
        path = sources.open_tfds(recipe.dataset, data_dir).data_path
        if not path.exists():  # reading it would download it
            raise InputError(
                f"dataset {recipe.dataset} is not on disk: {str(path)!r} does not exist"
            )
    source = Dataset.open(recipe, data_dir).source
    square = preprocess.of_recipe(recipe).square

    def prepare(example: sources.Example) -> tf.Tensor:
        return tf.cast(
            tf.round(255.0 * square(source.image(example).pixels())), tf.uint8
        )

    num_shares = max(1, source.num_examples(split) * NUM_PARTS // NUM_PICTURES)
    chosen = sorted({num_shares * part // NUM_PARTS for part in range(NUM_PARTS)})
    parts = [source.examples(split, None, Shard(index, num_shares)) for index in chosen]
    examples = functools.reduce(tf.data.Dataset.concatenate, parts)
    images = list(
        examples.map(prepare).ignore_errors().take(NUM_PICTURES).as_numpy_iterator()
    )
    if not images:
        raise InputError(f"none of the {name} can be read")
    shape = (len(images), recipe.input_size, recipe.input_size, 3)
    return Pictures(np.broadcast_to(images, shape), name)  # gray becomes RGB


def random_pictures(input_size: int) -> Pictures:
    """Returns `NUM_PICTURES` pictures of noise."""
    random = np.random.default_rng(0)
    shape = (NUM_PICTURES, input_size, input_size, 3)
    return Pictures(random.integers(0, 256, shape, dtype=np.uint8), "random pictures")


def compare(classify: Callable[..., Any], run: Runner, pictures: Pictures) -> Parity:
    """Compares the outputs of a classifier with those of its converted form, in batches of several sizes.

    Args:
      classify: uint8 images [b, h, w, 3] -> "logits" and "probabilities", tensors [b, num_classes].
      run: the converted form.
      pictures: the pictures to compare on.
    """
    rows = []
    ends = np.cumsum(BATCHES * (1 + len(pictures.images) // sum(BATCHES)))
    batches = np.split(pictures.images, ends[ends < len(pictures.images)])
    progress = tqdm(
        total=len(pictures.images),
        desc="comparing with Keras",
        disable=None,
        leave=False,
    )
    for images in batches:
        expected = classify(tf.constant(images))
        found = run(images)
        rows.append(
            [
                expected["logits"],
                found["logits"],
                expected["probabilities"],
                found["probabilities"],
            ]
        )
        progress.update(len(images))
    progress.close()
    logits, found_logits, probabilities, found_probabilities = map(
        np.concatenate, zip(*rows, strict=True)
    )
    return Parity(
        pictures.name,
        len(pictures.images),
        int(np.sum(logits.argmax(-1) == found_logits.argmax(-1))),
        float(np.abs(probabilities - found_probabilities).max()),
        float(np.abs(logits - found_logits).max()),
        float(logits.std()),
    )
