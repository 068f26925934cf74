# SPDX-License-Identifier: Apache-2.0
"""Initializes the backbone of a detector from `task.init_checkpoint`.

It may be a checkpoint of Model Garden, or initial weights as in `lambdanet train --set=start_from=...`: a
model_dir, of which the moving averages are used if that run kept them, a file, a folder or published weights.
It must have every tensor of the backbone and no others except a classifier's.
"""

import contextlib
from collections.abc import Iterable, Iterator

import tensorflow as tf
import tf_keras

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.detection.modeling.backbones import ZooBackbone
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.tf_keras_model import STATE
from lambdanet.models.weights import tensor_files, weight_files
from lambdanet.training.run.model_dir import load_weights
from lambdanet.training.run.start import find_initial_weights

# Layers of the zoo's networks above the endpoints.
HEAD_PREFIXES = (f"{CLASSIFIER}/", "final_conv/", "final_norm/")
# The end of the key of every variable in a checkpoint.
VARIABLE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
SLOT = "/.OPTIMIZER_SLOT/"
# Beginnings of the names of variables outside the model.
TRAINER_PREFIXES = ("optimizer/", "global_step/", "save_counter/")


def load_zoo_weights(backbone: tf_keras.Model, source: str) -> bool:
    """Loads the weights of a classifier of lambdanet into a backbone.

    Args:
      backbone: a backbone of the same model.
      source: the weights, as for `find_initial_weights`.

    Returns:
      False if the source is a checkpoint, and so for Model Garden to load.

    Raises:
      InputError: the source cannot be read, is for another model, or its tensors do not fit; the message
        names them.
      ConnectionError: published weights are neither in the cache nor can be downloaded.
    """
    if tf.train.latest_checkpoint(source) or tf.io.gfile.exists(f"{source}.index"):
        return False
    if not isinstance(backbone, ZooBackbone):
        accepted = f"a checkpoint of Model Garden for its backbone {backbone.name}"
        raise invalid("task.init_checkpoint", accepted, source)
    path = find_initial_weights(
        backbone.name, source, "task.init_checkpoint", "a checkpoint of Model Garden, "
    )
    if path.is_dir():
        recipe, arrays = load_weights(path)
        _check_model(source, recipe.model, backbone)
    else:
        arrays, metadata = tensor_files.read_safetensors(path)
        _check_model(source, metadata.get("model") or backbone.name, backbone)
    kept = {
        name: array
        for name, array in arrays.items()
        if not name.startswith(HEAD_PREFIXES)
    }
    weight_files.assign_weights(
        backbone.network, kept, f"task.init_checkpoint {source!r}"
    )
    unused = ", ".join(sorted(arrays.keys() - kept.keys())) or "none"
    print(
        f"backbone: all {len(kept)} tensors from {source}; not used: {unused}",
        flush=True,
    )
    return True


@contextlib.contextmanager
def verified_checkpoint(
    source: str, model: tf_keras.Model, modules: str | list[str]
) -> Iterator[None]:
    """Checks that a checkpoint of Model Garden has all tensors of the parts that are initialized inside.

    Args:
      source: the checkpoint without file extension, or a folder of checkpoints.
      model: the model that is initialized inside.
      modules: its parts: "all", "backbone" or "decoder", or several.

    Raises:
      InputError: there is no checkpoint, or it has other tensors.
    """
    name = f"task.init_checkpoint {source!r}"
    path = tf.train.latest_checkpoint(source) if tf.io.gfile.isdir(source) else source
    try:
        shapes = tf.train.load_checkpoint(path or "").get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {one_line(error)[:300]}") from None
    if isinstance(model.backbone, ZooBackbone):
        check_not_of_tf_keras(shapes, name)
    parts = {"model": model} if modules == "all" else {}
    parts |= {
        name: getattr(model, name)
        for name in ("backbone", "decoder")
        if name in modules
    }
    parts = {name: part for name, part in parts.items() if part is not None}
    for key, part in parts.items():
        accepted = f"a checkpoint with {len(part.weights)} tensors for the {key}"
        if (count := _count(shapes, key)) != len(part.weights):
            raise InputError(f"{name} must be {accepted} ({part.name}), got {count}")
    try:
        yield
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise InputError(
            f"{name} does not fit {model.name}: {one_line(error)[:300]}"
        ) from None
    for key, part in parts.items():
        print(f"{key}: all {len(part.weights)} tensors from {path}", flush=True)


def check_not_of_tf_keras(keys: Iterable[str], name: str) -> None:
    """Checks that a checkpoint of a zoo's backbone was not written while these were models of tf_keras.

    Args:
      keys: the keys of its variables.
      name: its name in the message.

    Raises:
      InputError: it was.
    """
    if any("backbone/layer_with_weights-" in key for key in keys):
        raise InputError(
            f"{name} is of an earlier version of lambdanet, with a backbone of tf_keras; the git tag "
            "last-with-both-kerases reads it"
        )


def _count(keys: Iterable[str], part: str) -> int:
    """Counts the tensors of a part, or of the whole "model", in a trainer's checkpoint.

    TensorFlow stores each tensor under its shortest path from the trainer, such as `backbone/...`.
    """
    tensors = [key for key in keys if key.endswith(VARIABLE_SUFFIX) and SLOT not in key]
    tensors = [key for key in tensors if f"/{STATE}" not in key]
    if part == "model":
        return sum(not key.startswith(TRAINER_PREFIXES) for key in tensors)
    return sum(key.startswith(f"{part}/") for key in tensors)


def _check_model(source: str, model: str, backbone: ZooBackbone) -> None:
    if model != backbone.name:
        accepted = f"weights of {backbone.name}, the model_id of task.model.backbone"
        raise InputError(
            f"task.init_checkpoint {source!r} must be {accepted}, got those of {model}"
        )
