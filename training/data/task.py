# SPDX-License-Identifier: Apache-2.0
"""The base of tasks, which are what a network is trained for: `task` of a recipe names one.

A task says how a label is read, which loss and metrics a run has, what its evaluation measures, and what its
exports return, predict and draw, by a `TaskOutputs`. The loop, the checkpoints, the sources and
`serving` know no task by name. A new one is a subclass of `Task` and its line in `TASKS` of
configs/recipe_values.py: docs/how-to/own_task.md.

A step of training on JAX needs no TensorFlow, so tasks import it where they read data; a prediction needs no
Keras, so losses and metrics are in a module of their own.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import BALANCED
from lambdanet.core.errors import invalid
from lambdanet.training.data.task_outputs import TaskOutputs, find_task, place_of

if TYPE_CHECKING:
    from lambdanet.backend import keras

Example = dict[str, Any]  # of a source
Pair = tuple[Any, Any]  # an image and its label
# The logits of each batch, and its labels, as of `evaluate.outputs`.
Batches = Iterable[tuple[Any, np.ndarray]]


class Evaluation(NamedTuple):
    """What was measured on a split.

    Attributes:
      values: numbers by name, `examples` and `loss` among them.
      text: the same on a line.
      labels: those of all images, [n, ...], or what else `Task.write` needs.
      predicted: what the task makes of the outputs for them, [n, ...].
      confidences: the probabilities of `predicted`, [n], where these are classes.
      scores: a measure of each class to print, from 0 to 1, NaN where there is none.
    """

    values: dict[str, Any]
    text: str
    labels: np.ndarray
    predicted: np.ndarray
    confidences: Any = None
    scores: Any = ()


class Task(Protocol):
    """The base of tasks.

    Attributes:
      recipe: the recipe, with the number of classes.
      best: the metric of which the best epoch has the most.
      any_size: whether its networks make maps of pictures of any size; `evaluate` reads each whole.
      outputs_type: the class of what its exports return, predict and draw.
      FILES: the names of the files of an evaluation.
    """

    recipe: Recipe
    best: str
    any_size: ClassVar[bool] = False
    outputs_type: ClassVar[type[TaskOutputs]] = TaskOutputs
    FILES: ClassVar[Sequence[str]]

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def build(self, arguments: dict[str, Any]) -> "keras.Model":
        """Returns the network of the recipe, for arguments of `create_model`."""
        from lambdanet.models import names, zoo

        names.check_model(self.recipe.model, "classification")
        return zoo.create_model(self.recipe.model, **arguments)

    def open_source(self, data_dir: str | None) -> Any:
        """Returns the labeled images of the recipe, a `training.data.sources.Source`."""

    def read(self, source: Any, example: Example) -> Any:
        """Returns the label of an example, of one shape and type for all; classes have `source.numbers`."""
        return source.label(example)

    def pair(self, source: Any, example: Example) -> Pair:
        """Returns the image of an example, as `view` takes it, and its label."""
        return source.image(example), self.read(source, example)

    def view(self, image: Any, label: Any, seed: Any) -> Pair:
        """Returns the part of an image and its label that training sees, by a seed, int64 [2].

        Args:
          image: the image; by default an `image_bytes.Encoded`.
          label: its label.
          seed: the same seed gives the same part.

        Returns:
          The image, uint8 [size_in_training, size_in_training, c], and its label.
        """
        from lambdanet.training.data import preprocess

        return preprocess.training_view(image, self.recipe, seed), label

    def evaluation_pair(
        self, source: Any, example: Example, whole: bool = False
    ) -> Pair:
        """Returns a normalized image, float32 [input_size, input_size, c] or `whole`, and its label."""
        from lambdanet.training.data import preprocess

        del whole
        image, label = self.pair(source, example)
        return preprocess.of_recipe(self.recipe)(image.pixels()), label

    def count(self, labels: np.ndarray) -> np.ndarray:
        """Returns the numbers of images with and without each class, [2, num_classes], in labels [n, ...].

        Labels of different sizes are padded with 255. `InputError` where they have no classes, the default.
        """
        accepted = f"empty or numbers with the task {self.recipe.task}"
        raise invalid("class_weights", accepted, BALANCED)

    def loss(self) -> "keras.losses.Loss":
        """Returns the loss of labels and logits."""

    def metrics(self) -> "list[keras.metrics.Metric]":
        """Returns new metrics of labels and logits, the one that `best` names among them."""

    def first_label(self) -> np.ndarray:
        """Returns a batch of one label, of the type that the data have."""

    def describe_best(self, model: "keras.Model") -> dict[str, Any]:
        """Returns what best.json also records, of a compiled model that was just evaluated."""
        return {}

    def record(self, model_dir: Path) -> dict[str, Any]:
        """Returns what an export of a run records: the task, and other arguments of `outputs_type`."""
        task = type(self)
        is_own = not task.__module__.startswith("lambdanet.")
        return {"task": place_of(task) if is_own else self.recipe.task}

    def measure(self, pairs: Batches, model_dir: Path) -> Evaluation:
        """Returns what an evaluation measures.

        Args:
          pairs: the logits and labels.
          model_dir: the folder of the run.
        """

    def write(self, folder: Path, dataset: Any, found: Evaluation, title: str) -> None:
        """Writes the files of an evaluation of a dataset, those of `FILES`, and prints their paths."""


def task_of(recipe: Recipe) -> Task:
    """Returns the task of a recipe."""
    return find_task(recipe.task)(recipe)
