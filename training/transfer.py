# SPDX-License-Identifier: Apache-2.0
"""Training that starts from the weights of an earlier run."""

from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError
from lambdanet.models import safetensors, weights
from lambdanet.training.model_dir import load_trained_model

CLASSIFIER = "logits"


def start_from(model: keras.Model, source: str | Path, zero_head: bool = False) -> None:
    """Gives a model the weights of a model_dir, averages where that run kept them, or those of a file.

    The classifier of a run with another number of classes is left out: it starts anew.

    Args:
      model: of the same architecture.
      source: a folder that `lambdanet train` has written, or weights as `create_model` takes them.
      zero_head: whether the classifier starts at zero, whatever is there.

    Raises:
      InputError: there are no such weights, or they are of another architecture.
    """
    if Path(source).expanduser().is_dir() or not _is_weights(model, source):
        _from_model_dir(model, source)
    else:
        _from_file(model, weights.find(model.name, source))
    if zero_head:
        for weight in model.get_layer(CLASSIFIER).weights:
            weight.assign(tf.zeros_like(weight))


def _from_file(model: keras.Model, path: Path) -> None:
    if not path.name.endswith(weights.SAFETENSORS):
        weights.load(model, path)
        return
    arrays, _ = safetensors.read(path)
    classifier = weights.named(model.get_layer(CLASSIFIER))
    fits = all(name in arrays and arrays[name].shape == one.shape for name, one in classifier.items())
    weights.assign(model, arrays, repr(str(path)), () if fits else set(classifier))


def _is_weights(model: keras.Model, source: str | Path) -> bool:
    try:
        weights.find(model.name, source)
    except InputError:
        return False
    return True


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
