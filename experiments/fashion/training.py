# SPDX-License-Identifier: Apache-2.0
"""Trains a contender on pictures in memory, and measures its accuracy on the test pictures.

It is what `lambdanet train` computes with the same recipe: its model, loss, optimizer and augmentation.
Pictures are prepared a batch at a time, which takes less than a tenth of the time of an input pipeline.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lambdanet
from experiments.fashion.contenders import FASHION, FRACTIONS, STUDIES, recipe_of
from lambdanet.backend import ENGINE, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.models import complexity
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.models.weights import weight_files
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run.build import build_loss, build_optimizer

SHIFTS = (1, 2, 3, 4)  # pixels, in each of four directions
NOISES = (0.1, 0.2)  # standard deviations, of pixels in 0..1
SIDES = (20, 40, 56)  # of resized pictures
SCALE = 2  # of the networks' inputs
READ_BATCH = 1000
TEST_BATCH = 500
# XLA is slower on a CPU.
JIT = "auto" if ENGINE == "jax" else False


class Run(NamedTuple):
    """A training: a study, a contender and a seed; in the file of results, a row."""

    study: str
    contender: str
    seed: int


class Pictures(NamedTuple):
    """Pictures, uint8 [n, h, w, c], and labels, int64 [n]."""

    pixels: np.ndarray
    labels: np.ndarray

    def first(self, fraction: float) -> "Pictures":
        """Returns the first pictures, with their labels."""
        count = int(fraction * len(self.labels))
        return Pictures(self.pixels[:count], self.labels[:count])


def run(
    key: Run,
    data_dir: str | None,
    dataset: str = FASHION,
    machine: str = "",
    weights: Path | None = None,
) -> dict[str, Any]:
    """Trains a contender, and returns its row.

    Args:
      key: the study, the contender and the seed.
      data_dir: the folder of files of MNIST's format, or of TFDS.
      dataset: a name in `contenders.DATASETS`.
      machine: its name for the row.
      weights: a folder for the trained weights; None: they are not kept.
    """
    network = compiled_network(key.study, key.contender, data_dir, dataset)
    recipe = network.recipe
    begin = time.perf_counter()
    network.train(key.seed)
    seconds = time.perf_counter() - begin
    test = _pictures_of(dataset, data_dir, "test")
    found = accuracies(network, test, FRACTIONS[key.study])
    if weights is not None:
        weights.mkdir(parents=True, exist_ok=True)
        name = f"{key.study}_{key.contender}_{key.seed}.safetensors".replace(" ", "_")
        metadata = {
            "test_accuracy": f"{found['accuracy']:.4f}",
            **picture_metadata(recipe),
        }
        weight_files.save(network.model, weights / name, metadata)
    return {
        **key._asdict(),
        "parameters": complexity.count_parameters(network.model),
        "epochs": recipe.epochs,
        **{name: f"{share:.4f}" for name, share in found.items()},
        "seconds": f"{seconds:.0f}",
        "version": lambdanet.__version__,
        "machine": machine,
    }


def picture_metadata(described: Recipe | Preprocessing) -> dict[str, str]:
    """Returns the metadata of weights from which `preprocess_for` prepares pictures."""
    return {
        "input_size": str(described.input_size),
        "mean": ", ".join(map(str, described.mean)),
        "std": ", ".join(map(str, described.std)),
    }


def read_pictures(recipe: Recipe, data_dir: str | None, split: str) -> Pictures:
    """Returns all pictures of a split of a recipe's dataset, which have one size.

    Raises:
      InputError: there are no such data, or they are damaged.
    """
    source = Dataset.open(recipe, data_dir).source
    examples = source.examples(split, None)
    pairs = examples.map(lambda each: (source.image(each).pixels(), source.label(each)))
    parts = [*pairs.batch(READ_BATCH).as_numpy_iterator()]
    pixels, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Pictures(pixels, labels)


@functools.cache
def _pictures_of(dataset: str, data_dir: str | None, split: str) -> Pictures:
    recipe = recipe_of("networks", "resnet_micro", dataset)
    return read_pictures(recipe, data_dir, split)


@functools.lru_cache(maxsize=32)
def compiled_network(
    study: str,
    contender: str,
    data_dir: str | None,
    dataset: str = FASHION,
) -> "Network":
    """Returns the network of a contender with its pictures, which all of its seeds share."""
    recipe = recipe_of(study, contender, dataset)
    pictures = _pictures_of(dataset, data_dir, "train").first(FRACTIONS[study])
    return Network(recipe, STUDIES[study][contender].build, pictures)


class Network:
    """A network that is compiled once and trained from any seed.

    Args:
      recipe: how it is trained.
      build: makes a network with fresh weights for a recipe.
      pictures: those for training.
    """

    def __init__(
        self,
        recipe: Recipe,
        build: Callable[[Recipe], keras.Model],
        pictures: Pictures,
    ):
        self.recipe = recipe
        self.build = build
        self.model = build(recipe)
        self._pictures = pictures
        steps = len(pictures.labels) // recipe.global_batch_size
        optimizer = build_optimizer(recipe, steps)
        self.model.compile(optimizer, build_loss(recipe), jit_compile=JIT)
        optimizer.build(self.model.trainable_variables)
        self._beginning = [variable.numpy() for variable in optimizer.variables]
        self._of_size = functools.cache(self._build_for_size)

    def train(self, seed: int) -> None:
        """Trains the network from fresh weights; weights, order and flips depend on the seed alone."""
        keras.utils.set_random_seed(seed)
        self.model.set_weights(self.build(self.recipe).get_weights())
        for variable, value in zip(
            self.model.optimizer.variables, self._beginning, strict=True
        ):
            variable.assign(value)
        batches = Batches(self.recipe, self._pictures, seed)
        self.model.fit(batches, epochs=self.recipe.epochs, shuffle=False, verbose=0)

    def accuracy(self, size: int, pictures: Pictures) -> float:
        """Returns the share of pictures, resized to a size, that get their label.

        A network with weights for one size of map has none for other sizes: nan.
        """
        model = self.model
        if size != self.recipe.input_size:
            model = self._of_size(size)
            shapes = [weight.shape for weight in self.model.weights]
            if [weight.shape for weight in model.weights] != shapes:
                return float("nan")
            model.set_weights(self.model.get_weights())
        images = preprocessing(self.recipe, size)(pictures.pixels)
        logits = model.predict(images, batch_size=TEST_BATCH, verbose=0)
        return float(np.mean(logits.argmax(-1) == pictures.labels))

    def _build_for_size(self, size: int) -> keras.Model:
        model = self.build(dataclasses.replace(self.recipe, input_size=size))
        model.compile(jit_compile=JIT)
        return model


class Batches(keras.utils.PyDataset):
    """Batches of training pictures in another order in each epoch, half of each batch's pictures flipped."""

    def __init__(self, recipe: Recipe, pictures: Pictures, seed: int):
        super().__init__()
        self._batch_size = recipe.global_batch_size
        self._images = preprocessing(recipe, recipe.input_size)(pictures.pixels)
        self._labels = pictures.labels
        self._random = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self) -> int:
        return len(self._labels) // self._batch_size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        begin = index * self._batch_size
        chosen = self._order[begin : begin + self._batch_size]
        images = self._images[chosen]
        flipped = self._flips[chosen]
        images[flipped] = images[flipped, :, ::-1]
        return images, self._labels[chosen]

    def on_epoch_end(self) -> None:
        count = len(self._labels)
        self._order = self._random.permutation(count)
        self._flips = self._random.random(count) < 0.5


def preprocessing(recipe: Recipe, size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what makes inputs of a size, float32 [n, size, size, c], of pictures."""
    prepare = Preprocessing(size, recipe.mean, recipe.std)
    return lambda pixels: keras.ops.convert_to_numpy(prepare(pixels))


def accuracies(
    network: Network,
    test: Pictures,
    fraction: float = 1,
) -> dict[str, float]:
    """Returns the accuracy on test pictures: as they are, shifted, with noise, and of other sizes.

    All but the first of these are of the first pictures, a fraction of all.
    """
    size = network.recipe.input_size
    found = {"accuracy": network.accuracy(size, test)}
    test = test.first(fraction)
    for shift in SHIFTS:
        moved = [
            network.accuracy(size, test._replace(pixels=shifted(test.pixels, *by)))
            for by in ((shift, 0), (-shift, 0), (0, shift), (0, -shift))
        ]
        found[f"shift_{shift}"] = float(np.mean(moved))
    for noise in NOISES:
        drawn = np.random.default_rng(0).normal(0, 255 * noise, test.pixels.shape)
        noisy = np.clip(np.round(test.pixels + drawn), 0, 255).astype(np.uint8)
        found[f"noise_{noise}"] = network.accuracy(size, test._replace(pixels=noisy))
    for side in SIDES:
        found[f"side_{side}"] = network.accuracy(SCALE * side, test)
    return found


def shifted(pixels: np.ndarray, down: int, right: int) -> np.ndarray:
    """Returns pictures [b, h, w, c] moved by whole pixels, over black."""
    largest = max(abs(down), abs(right))
    around = [(0, 0), (largest, largest), (largest, largest), (0, 0)]
    padded = np.pad(pixels, around)
    height, width = pixels.shape[1:3]
    rows = slice(largest - down, largest - down + height)
    columns = slice(largest - right, largest - right + width)
    return padded[:, rows, columns]
