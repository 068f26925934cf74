# SPDX-License-Identifier: Apache-2.0
"""Training that starts from the weights of an earlier run."""

from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError
from lambdanet.models import zoo
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.weights import pretrained, weight_files
from lambdanet.training.run.model_dir import load_trained_model


def start_from(model: keras.Model, source: str | Path, zero_head: bool = False) -> None:
    """Gives a model the weights of a model_dir, averages where that run kept them, or those of a file.

    The classifier of a run with another number of classes is left out: it starts anew.

    Args:
      model: of the same architecture.
      source: a folder that `lambdanet train` has written, or weights as `create_model` takes them.
      zero_head: whether the classifier starts at zero, whatever is there.

    Raises:
      InputError: there are no such weights, or they are of another architecture.
      ConnectionError: for published weights that are not at hand and cannot be fetched.
    """
    path = _weights(model.name, source)
    if path is None:
        _from_model_dir(model, source)
    else:
        weight_files.load_weights(model, path, other_classes=True)
    if zero_head:
        for weight in model.get_layer(CLASSIFIER).weights:
            weight.assign(tf.zeros_like(weight))


def _weights(name: str, source: str | Path) -> Path | None:
    """The file of weights that is meant, fetched where it is a published set; None for a model_dir."""
    if pretrained_weights.find(name, str(source)) or str(source).endswith(
        (weight_files.H5, weight_files.SAFETENSORS)
    ):
        return pretrained.locate(name, source, lambda: zoo.create_model(name))
    try:
        return weight_files.find_file(name, source)
    except InputError:
        return None


def _from_model_dir(model: keras.Model, model_dir: str | Path) -> None:
    trained, recipe = load_trained_model(model_dir)
    if [layer.name for layer in trained.layers] != [layer.name for layer in model.layers]:
        raise InputError(f"start_from {str(model_dir)!r} holds {recipe.model}; accepted: {model.name}")
    for layer, source in zip(model.layers, trained.layers, strict=True):
        shapes, found = ([weight.shape for weight in one.weights] for one in (layer, source))
        if shapes == found:
            layer.set_weights(source.get_weights())
        elif layer.name != CLASSIFIER:
            raise InputError(
                f"start_from {str(model_dir)!r} does not fit: {layer.name} has weights of the shapes {found} "
                f"there and {shapes} in {model.name}"
            )
