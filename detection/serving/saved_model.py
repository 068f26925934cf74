# SPDX-License-Identifier: Apache-2.0
"""Writes a trained detector as a SavedModel that needs nothing but TensorFlow."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.data import annotations
from lambdanet.detection.model_garden import maskrcnn, retinanet, task_factory
from lambdanet.detection.run import checkpoints
from lambdanet.detection.serving.module import ServedDetector
from lambdanet.errors import InputError
from lambdanet.files import absolute, atomic_dir, check_output_dir

# isort: split
from official.vision.ops import preprocess_ops


def export(
    model_dir: str | Path,
    out: str | Path,
    experiment: str | None = None,
    checkpoint: str | Path | None = None,
    input_size: Sequence[int] | None = None,
    annotation_file: str | Path | None = None,
) -> str:
    """Exports the detector trained in `model_dir` to the SavedModel `out`.

    Args:
      model_dir: a folder that `lambdanet.detection.train` has written, with at least one checkpoint.
      out: the folder to write; it must not exist yet, or be empty.
      experiment: name of its experiment, where `model_dir` does not say it.
      checkpoint: which one to export, or a folder of them (default: the newest of `model_dir`).
      input_size: height and width in pixels to which pictures are brought (default: as in training).
      annotation_file: names the classes (default: that of the experiment, or the numbers of the classes).

    Returns:
      The path of the SavedModel.

    Raises:
      InputError: there is no trained detector in `model_dir`, its checkpoint does not fit, or `out` cannot be
        written.

    Example:
      >>> export("runs/shapes", "exported/shapes")
      >>> served = tf.saved_model.load("exported/shapes")
    """
    check_output_dir(out)
    params = checkpoints.load_experiment(model_dir, experiment)
    found = checkpoints.checkpoint_of(checkpoint or model_dir)
    names = _class_names(params, annotation_file)
    size = _set_input_size(params, input_size)
    model = _build(params)
    kind = checkpoints.load_weights(model, params, found)
    path = export_detector(params, model, out, size, names)
    step = os.path.basename(found)
    print(
        f"exported the {kind} of {step} ({len(names) - 1} classes, {size[0]}x{size[1]} px, float32) to {path}"
    )
    return path


def export_detector(
    params: Any, model: keras.Model, out: str | Path, input_size: Sequence[int], class_names: Sequence[str]
) -> str:
    """Writes a detector of Model Garden as a SavedModel, whose signatures `ServedDetector` explains.

    Args:
      params: its experiment.
      model: with its weights.
      out: the folder to write; it must not exist yet, or be empty.
      input_size: height and width in pixels to which pictures are brought.
      class_names: a name for each number of a class, from 0, the background.

    Returns:
      The path of the SavedModel.
    """
    check_output_dir(out)
    path = absolute(out)
    with tempfile.TemporaryDirectory() as folder:
        names_file = os.path.join(folder, "class_names.txt")
        with open(names_file, "w", encoding="utf-8") as lines:
            lines.writelines(f"{name}\n" for name in class_names)
        served = ServedDetector(params, model, input_size, class_names, names_file)
        signatures = served.signatures()
        with atomic_dir(path) as staging:
            # Nobody trains it further; without gradients it is smaller, and sooner written and loaded.
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            tf.saved_model.save(served, staging, signatures=signatures, options=options)
    return path


def _class_names(params: Any, annotation_file: str | Path | None) -> list[str]:
    """The names in the annotations; numbers in their place where there are no annotations."""
    num_classes = params.task.model.num_classes
    named = annotation_file or params.task.annotation_file
    if named and (annotation_file or tf.io.gfile.exists(os.path.expanduser(named))):
        return annotations.class_names(named, num_classes)
    print(f"no annotation file ({named}): classes are called by their numbers")
    return ["background", *map(str, range(1, num_classes))]


def _set_input_size(params: Any, input_size: Sequence[int] | None) -> list[int]:
    """Chooses the size of the pictures, and builds the model for what they are padded to: whole strides."""
    model = params.task.model
    size = list(input_size or model.input_size[:2])
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise InputError(f"input_size={size} cannot be used; expected height and width in pixels")
    model.input_size = [*preprocess_ops.compute_padded_size(size, 2**model.max_level), 3]
    return size


def _build(params: Any) -> keras.Model:
    if not isinstance(params.task, maskrcnn.MaskRCNNTask | retinanet.RetinaNetTask):
        raise InputError(
            f"the experiment is a {type(params.task).__name__}; expected one of Mask R-CNN or RetinaNet"
        )
    return task_factory.get_task(params.task).build_model()
