# SPDX-License-Identifier: Apache-2.0
"""Initial weights: from an earlier run, a file, or a published set."""

from functools import partial
from pathlib import Path

from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import invalid
from lambdanet.models import zoo
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.weights import pretrained, weight_files
from lambdanet.training.run.model_dir import RECIPE, load_weights


def load_initial_weights(model: keras.Model, source: str | Path, zero_head: bool = False) -> None:
    """Loads the weights of a model_dir, or the averages that it keeps, or the weights of a file.

    A classifier with another number of classes keeps its initial weights; with `zero_head`, it gets zeros.
    `InputError` for weights of another architecture, and the errors of `find`.
    """
    path = find(model.name, source)
    if path.is_dir():
        recipe, arrays = load_weights(path)
        if recipe.model != model.name:
            hint = "set model and model_options as in its recipe.json"
            raise invalid(f"model in start_from {str(path)!r}", model.name, recipe.model, hint)
        weight_files.assign_weights(
            model, arrays, f"start_from {str(path)!r}", weight_files.other_head(model, arrays)
        )
    else:
        weight_files.load_weights(model, path, other_classes=True)
    if zero_head:
        for weight in model.get_layer(CLASSIFIER).weights:
            weight.assign(keras.ops.zeros_like(weight))


def find(model_name: str, source: str | Path, argument: str = "start_from", others: str = "") -> Path:
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
    if (folder / RECIPE).is_file() and not pretrained_weights.find(model_name, str(source)):
        return folder
    others += "a model_dir of `lambdanet train`, "
    return pretrained.locate(model_name, source, partial(zoo.create_model, model_name), argument, others)
