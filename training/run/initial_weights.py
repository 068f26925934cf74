# SPDX-License-Identifier: Apache-2.0
"""Initial weights: from an earlier run, a file, or a published set."""

from functools import partial
from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError, invalid
from lambdanet.models import zoo
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.weights import pretrained, repositories, weight_files
from lambdanet.training.run.model_dir import load_trained_model


def load_initial_weights(model: keras.Model, source: str | Path, zero_head: bool = False) -> None:
    """Loads the weights of a model_dir, or the averages that it keeps, or the weights of a file.

    A classifier with another number of classes keeps its initial weights.

    Args:
      model: a model of the same architecture.
      source: a model_dir of `lambdanet train`, or weights for `create_model`.
      zero_head: whether to set the weights of the classifier to zero.

    Raises:
      InputError: there are no such weights, or they are of another architecture.
      ConnectionError: published weights are neither in the cache nor can be downloaded.
    """
    path = _find_file(model.name, source)
    if path is None:
        _from_model_dir(model, source)
    else:
        weight_files.load_weights(model, path, other_classes=True)
    if zero_head:
        for weight in model.get_layer(CLASSIFIER).weights:
            weight.assign(tf.zeros_like(weight))


def _find_file(name: str, source: str | Path) -> Path | None:
    """Returns the file of weights, a published one after its download; None for a model_dir."""
    if (
        pretrained_weights.find(name, str(source))
        or str(source).startswith(repositories.PREFIX)
        or str(source).endswith((weight_files.H5, weight_files.SAFETENSORS))
    ):
        return pretrained.locate(name, source, partial(zoo.create_model, name))
    try:
        return weight_files.find_file(name, source)
    except InputError:
        return None


def _from_model_dir(model: keras.Model, model_dir: str | Path) -> None:
    if not Path(model_dir).expanduser().is_dir():
        raise invalid(
            "start_from", "a model_dir of `lambdanet train`, or weights for create_model", str(model_dir)
        )
    trained, recipe = load_trained_model(model_dir)
    layers, sources = (
        {layer.name: layer for layer in one.layers if layer.weights} for one in (model, trained)
    )
    differing = sorted(layers.keys() ^ sources.keys())
    if differing:
        names = ", ".join(differing[:3]) + ", ..." * (len(differing) > 3)
        hint = f"they differ in {names}: set model and model_options as in its recipe.json"
        raise invalid(f"model in start_from {str(model_dir)!r}", model.name, recipe.model, hint)
    for name, layer in layers.items():
        source = sources[name]
        shapes, found = ([weight.shape for weight in weights] for weights in (layer.weights, source.weights))
        if shapes == found:
            layer.set_weights(source.get_weights())
        elif name != CLASSIFIER:
            raise InputError(
                f"start_from {str(model_dir)!r} does not fit: {name} has weights of the shapes {found} "
                f"there and {shapes} in {model.name}"
            )
