# SPDX-License-Identifier: Apache-2.0
"""The base of what exported networks return; `Task.outputs_type` is that of a task.

An export records its task, and is read without Keras, which therefore nothing here imports.
"""

import json
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambdanet.configs.recipe_values import TASKS
from lambdanet.core.errors import invalid

Result = dict[str, Any]  # of an image, as `predict` returns it
Record = Mapping[str, Any]  # the task of an export, and the settings of its outputs
CLASSIFICATION: Record = {"task": "classification"}


class TaskOutputs:
    """What an exported network returns: its signatures, comparison, predictions and drawings.

    By default these are numbers for each picture, [b, n].

    Args:
      class_names: the name of each class, by number.
      **settings: what else an export records, numbers for each class. A SavedModel has functions that return
        them, and beside a model for a runtime are files with them.

    Attributes:
      kind: what a network makes, for messages.
      output: the output of its signatures that is compared and predicted.
      any_size: whether it takes pictures as they are, of any size, and its predictions are maps.
      unit: what of a picture is compared, before the name of the pictures.
      max_compared: the largest number of pictures to compare; None: any.
      has_one_class: whether a picture has one class.
      num_logits: the number of logits, those of classes, the largest of which are compared; None: any.
      suffixes: the ends of the names of files in which a prediction is drawn.
    """

    kind = "numbers"
    output = "outputs"
    any_size = False
    unit = ""
    max_compared: int | None = None
    has_one_class = False
    num_logits: int | None = None
    suffixes: tuple[str, ...] = ()

    def __init__(self, class_names: Sequence[str], **settings: Sequence[float]):
        self.class_names = list(class_names)
        self.settings = settings

    def final(self, logits: Any) -> Any:
        """Returns what `output` is for logits, both tensors of TensorFlow."""
        return logits

    def serve(self, logits: Any) -> Result:
        """Returns the outputs of the signatures of a SavedModel, by their names."""
        return {self.output: self.final(logits)}

    def convert(self, logits: Any) -> Result:
        """Returns the outputs of a model for a runtime, `logits` among them."""
        return {"logits": logits, self.output: self.final(logits)}

    def find(self, signatures: Any, path: str, window: int, overlap: int) -> np.ndarray:
        """Returns what a SavedModel finds in an image file.

        Args:
          signatures: those of the SavedModel.
          path: the image file.
          window, overlap: the windows in which it is read, as of `sliding_window`; 0: it is whole.
        """
        # Here: a step of training on JAX needs no TensorFlow.
        import tensorflow as tf

        from lambdanet.training.data.image_files import named_if_damaged, read_contents

        contents = tf.constant([read_contents(path)])
        with named_if_damaged(path):
            outputs = signatures["serving_bytes"](image_bytes=contents)
        return outputs[self.output][0].numpy()

    def describe(self, found: np.ndarray, top: int) -> Result:
        """Returns what `predict` returns of a picture, with at most `top` classes."""
        return {self.output: found.tolist()}

    def rows(self, result: Result) -> list[Result]:
        """Returns the rows of a table for a picture."""
        return [{self.output: f"{value:.6g}"} for value in result[self.output]]

    def fields(self, result: Result) -> Result:
        """Returns the fields of a line of JSON for a picture."""
        return {self.output: result[self.output]}

    def lines(self, result: Result) -> list[str]:
        """Returns the lines that are printed for a picture."""
        return [f"{value:.6g}" for value in result[self.output]]

    def draw(self, image: np.ndarray, title: str, found: Any, result: Result) -> Any:
        """Returns the drawings of a prediction, one for each of `suffixes`."""


def place_of(task: type) -> str:
    """Returns the place of a class, "module:Class"."""
    return f"{task.__module__}:{task.__qualname__}"


def find_task(name: str) -> Any:
    """Returns the class of a task by its name in `TASKS` or its place; `InputError` where it is not found."""
    own = {place_of(task): task for task in TASKS.values()}
    try:
        return own.get(name) or TASKS.get(name) or pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        accepted = "one of lambdanet, or module:Class that can be imported"
        raise invalid("task", accepted, name, str(error)) from None


def read_outputs(class_names: Sequence[str], record: Record) -> Any:
    """Returns the outputs of an export; `InputError` where its task is not found."""
    settings = dict(record)
    return find_task(settings.pop("task")).outputs_type(class_names, **settings)


def read_record(exported: Any) -> Record:
    """Returns the record of a loaded SavedModel; of one of an earlier version, by its outputs."""
    if hasattr(exported, "task_record"):
        return json.loads(exported.task_record().numpy())
    outputs = exported.signatures["serving_bytes"].structured_outputs
    if "classes" in outputs:
        return {"task": "segmentation"}
    if "is_present" in outputs:
        thresholds = exported.thresholds().numpy().tolist()
        return {"task": "multilabel", "thresholds": thresholds}
    return CLASSIFICATION
