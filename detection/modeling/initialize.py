# SPDX-License-Identifier: Apache-2.0
"""What a detector's backbone starts from: `task.init_checkpoint`.

Besides a checkpoint of Model Garden's own it may be

    a model_dir of `lambdanet train`     the moving averages of its weights, where that run kept them
    a .safetensors or .weights.h5 file, or a folder of `lambdanet convert`
    SET:MODEL                            published weights, such as imagenet:lambda_resnet50ts

Every tensor of the backbone must be found there, and nothing but the classifier may be left over.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.modeling.backbones import ZooBackbone
from lambdanet.errors import InputError, one_line
from lambdanet.models import zoo
from lambdanet.models.weights import safetensors, weight_files
from lambdanet.training.run.model_dir import RECIPE, load_trained_model

# What the networks of the zoo have above the endpoints.
CLASSIFIER = ("logits/", "final_conv/", "final_norm/")
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the key of every variable in a checkpoint
SLOT = "/.OPTIMIZER_SLOT/"
NOT_OF_THE_MODEL = ("optimizer/", "global_step/", "save_counter/")  # what a trainer keeps besides


def from_zoo(backbone: keras.Model, source: str) -> bool:
    """Gives a backbone the weights that a classifier of lambdanet was trained to.

    Args:
      backbone: of the same model.
      source: see above.

    Returns:
      False if the source is none of lambdanet: then it is for Model Garden.

    Raises:
      InputError: the source cannot be read, is of another model, or its tensors do not fit; the message
        names them.
    """
    path = Path(source).expanduser()
    tag, _, published = source.partition(":") if re.fullmatch(r"[\w-]+:\w+", source) else ("", "", "")
    run = (path / RECIPE).is_file()
    file = (
        path.name.endswith((weight_files.H5, weight_files.SAFETENSORS))
        or (path / weight_files.FOLDER_FILE).is_file()
    )
    if not (published or run or file):
        return False
    if not isinstance(backbone, ZooBackbone):
        raise InputError(
            f"task.init_checkpoint {source!r} is for the backbones of lambdanet, not for {backbone.name}"
        )
    if published:
        _same(source, published, backbone)
        arrays = _arrays(zoo.create_model(published, weights=tag))
    elif run:
        model, recipe = load_trained_model(path)
        _same(source, recipe.model, backbone)
        arrays = _arrays(model)
    else:
        arrays = _arrays_of_file(weight_files.find(backbone.name, source), source, backbone)
    kept = {name: array for name, array in arrays.items() if not name.startswith(CLASSIFIER)}
    weight_files.assign(backbone, kept, f"task.init_checkpoint {source!r}")
    left_out = ", ".join(sorted(arrays.keys() - kept.keys())) or "nothing"
    print(f"backbone: all {len(kept)} tensors from {source}; left out: {left_out}", flush=True)
    return True


@contextlib.contextmanager
def explained(source: str, model: keras.Model, modules: str | list[str]) -> Iterator[None]:
    """Accounts for the tensors that Model Garden's own initialisation reads from its own checkpoint.

    Args:
      source: of the checkpoint: a file without its ending, or the folder of several.
      model: that is initialised inside.
      modules: which parts of it: "all", "backbone" or "decoder", or several.

    Raises:
      InputError: there is no checkpoint, or it holds fewer or other tensors.
    """
    described = f"task.init_checkpoint {source!r}"
    path = tf.train.latest_checkpoint(source) if tf.io.gfile.isdir(source) else source
    try:
        shapes = tf.train.load_checkpoint(path or "").get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError):
        raise InputError(
            f"{described} is no checkpoint; accepted: one of Model Garden, a model_dir of `lambdanet train`, "
            "a .safetensors or .weights.h5 file, or a published set such as imagenet:lambda_resnet50ts"
        ) from None
    parts = {"model": model} if modules == "all" else {}
    parts |= {name: getattr(model, name) for name in ("backbone", "decoder") if name in modules}
    parts = {name: part for name, part in parts.items() if part is not None}
    for name, part in parts.items():
        number = _count(shapes, name)
        if number != len(part.weights):
            raise InputError(
                f"{described} holds {number} tensors of the {name}, {part.name} has {len(part.weights)}"
            )
    try:
        yield
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = one_line(error)[:300]
        raise InputError(f"{described} does not fit {model.name}: {reason}") from None
    for name, part in parts.items():
        print(f"{name}: all {len(part.weights)} tensors from {path}", flush=True)


def _count(keys: Iterable[str], part: str) -> int:
    """Returns how many tensors of a part, or of the whole "model", a trainer's checkpoint holds.

    A tensor has the shortest of the names that lead to it: what the trainer keeps as `backbone` is under that
    name, and the rest of the model under others.
    """
    tensors = [key for key in keys if key.endswith(VALUE) and SLOT not in key]
    if part == "model":
        return sum(not key.startswith(NOT_OF_THE_MODEL) for key in tensors)
    return sum(key.startswith(f"{part}/") for key in tensors)


def _same(source: str, trained: str, backbone: ZooBackbone) -> None:
    if trained != backbone.name:
        raise InputError(
            f"task.init_checkpoint {source!r} holds {trained}, and the backbone is {backbone.name}; "
            "accepted: the same, by the model_id of task.model.backbone"
        )


def _arrays(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in weight_files.named(model).items()}


def _arrays_of_file(file: Path, source: str, backbone: ZooBackbone) -> dict[str, np.ndarray]:
    if file.name.endswith(weight_files.SAFETENSORS):
        arrays, metadata = safetensors.read(file)
        _same(source, metadata.get("model") or backbone.name, backbone)
        return arrays
    return _arrays(zoo.create_model(backbone.name, weights=file))
