# SPDX-License-Identifier: Apache-2.0
"""Initial weights: from an earlier run, a file, or a published set."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import invalid
from lambdanet.models import zoo
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.weights import pretrained, weight_files
from lambdanet.models.weights.trained_classes import names_of
from lambdanet.training.data.class_names import Classes
from lambdanet.training.run.model_dir import RECIPE, class_names, load_weights


def load_initial_weights(
    model: keras.Model,
    source: str | Path,
    zero_head: bool = False,
    classes: Classes | None = None,
) -> str:
    """Loads the weights of a model_dir, or the averages that it keeps, or the weights of a file.

    The columns of the classifier are matched with the classes by name (`Classes.columns_in`); classes that
    the weights do not have keep their initial weights.

    Args:
      model: the model to train.
      source: the weights, as for `find`.
      zero_head: whether the classifier gets zeros instead.
      classes: the classes of the data, in the order of the model's logits; None: only their number is known.

    Returns:
      A line that says what was kept of the classifier; empty where both have the same classes in one order.

    Raises:
      InputError: the weights are of another architecture, and the errors of `find`.
    """
    path = find(model.name, source)
    classes = classes or Classes("the data", model.output_shape[-1])
    owner = f"start_from {str(source)!r}"
    if path.is_dir():
        recipe, arrays = load_weights(path)
        if recipe.model != model.name:
            hint = "set model and model_options as in its recipe.json"
            raise invalid(f"model in {owner}", model.name, recipe.model, hint)
        line = _assign(model, arrays, classes, owner, class_names(path))
    else:
        arrays, metadata = weight_files.read_arrays(model, path)
        line = _assign(model, arrays, classes, owner, names_of(metadata))
    if not zero_head:
        return line
    for weight in model.get_layer(CLASSIFIER).weights:
        weight.assign(keras.ops.zeros_like(weight))
    return ""


def _assign(
    model: keras.Model,
    arrays: Mapping[str, np.ndarray],
    classes: Classes,
    owner: str,
    names: Sequence[str],
) -> str:
    """Assigns weights with the columns of the classifier that the classes have in it; returns the line."""
    trained = Classes(owner, weight_files.count_classes(arrays), names)
    columns, line = classes.columns_in(trained)
    weight_files.assign_weights(
        model, weight_files.with_columns(model, arrays, columns), owner
    )
    return line


def find(
    model_name: str, source: str | Path, argument: str = "start_from", others: str = ""
) -> Path:
    """Returns the model_dir, or the file, that has initial weights; fetches those of the hub first.

    Args:
      model_name: the name of the model.
      source: a model_dir of `lambdanet train`, or weights as for `create_model`; published ones come first.
      argument, others: the name of the argument and what else it may be, as for `weight_files.find_file`.

    Raises:
      InputError: there are no such weights.
      ConnectionError: published weights are neither in the cache nor can be downloaded.
    """
    folder = Path(source).expanduser()
    if (folder / RECIPE).is_file() and not pretrained_weights.find(
        model_name, str(source)
    ):
        return folder
    others += "a model_dir of `lambdanet train`, "
    return pretrained.locate(
        model_name, source, partial(zoo.create_model, model_name), argument, others
    )
