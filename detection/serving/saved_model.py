# SPDX-License-Identifier: Apache-2.0
"""Exports a trained detector to a SavedModel that needs only TensorFlow: images -> boxes in their pixels."""

import os
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from lambdanet.core.errors import invalid
from lambdanet.core.files import absolute, atomic_dir, check_output_dir
from lambdanet.detection.data import annotations
from lambdanet.detection.model_garden import (
    detection_serving,
    maskrcnn,
    preprocess_ops,
    retinanet,
    task_factory,
)
from lambdanet.detection.run.model_dir import (
    find_checkpoint,
    load_experiment,
    load_weights,
)
from lambdanet.training.data.class_names import write_names
from lambdanet.training.data.image_bytes import decode
from lambdanet.training.serving.saved_model import FILES, Outputs, ServingModule

OUTPUTS = (
    "detection_boxes",
    "detection_classes",
    "detection_scores",
    "num_detections",
    "detection_masks",
)


class ModelGardenModule(detection_serving.DetectionModule):
    """Model Garden's export module, extended to image files and boxes in pixels of the input."""

    def _build_inputs(self, image: tf.Tensor) -> Any:
        return super()._build_inputs(
            decode(image) if image.dtype == tf.string else image
        )

    def serve(self, images: tf.Tensor) -> Outputs:
        outputs = super().serve(images)
        # [b, 1, 2] each
        size = outputs["image_info"][:, 0:1, :]
        scale = outputs["image_info"][:, 2:3, :]
        boxes = tf.cast(outputs["detection_boxes"], tf.float32) / tf.tile(
            scale, [1, 1, 2]
        )
        outputs["detection_boxes"] = tf.clip_by_value(
            boxes, 0.0, tf.tile(size, [1, 1, 2])
        )
        return {
            name: tf.cast(outputs[name], tf.float32)
            if outputs[name].dtype.is_floating
            else outputs[name]
            for name in OUTPUTS
            if name in outputs
        }


class DetectorModule(ServingModule):
    """A detector with all steps from images to boxes, masks and class names.

    Each signature returns, for b images and n detections by descending score:
      detection_boxes    [b, n, 4] float32, ymin, xmin, ymax, xmax in pixels of the input image
      detection_classes  [b, n] int32, from 1, the index into `class_names`
      detection_scores   [b, n] float32, from 0 to 1
      num_detections     [b] int32, the number of detections among the n; the others are padding
      detection_masks    [b, n, 28, 28] float32, from 0 to 1, relative to the box; only if the model has masks

    Args:
      params: a Model Garden experiment of Mask R-CNN, Faster R-CNN, Cascade R-CNN or RetinaNet.
      model: the model of the experiment, with weights.
      input_size: the height and width in pixels to which images are resized; the aspect ratio is kept.
      class_names: the name of each class number; the first is the background.
      class_names_file: a file with the names, one per line, which is stored with the model.
    """

    SIGNATURES: ClassVar[dict[str, str]] = {
        **ServingModule.SIGNATURES,
        "serving_examples": "serve_examples",
    }

    def __init__(
        self,
        params: Any,
        model: keras.Model,
        input_size: Sequence[int],
        class_names: Sequence[str],
        class_names_file: str,
    ):
        super().__init__("detector", class_names, class_names_file)
        detector = ModelGardenModule(
            params=params,
            model=model,
            batch_size=None,
            input_image_size=list(input_size),
        )
        # Traced once for all signatures. The Keras model must not be reachable from this object's attributes,
        # or it would be saved too.
        detector.model = types.SimpleNamespace(call=tf.function(model.call))
        self._serve = detector.serve
        self.model_variables = list(model.variables)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")]
    )
    def serve_images(self, images: tf.Tensor) -> Outputs:
        """uint8 RGB images [b, h, w, 3] of any size -> detections."""
        return self._serve(images)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """JPEG, PNG or WebP files [b] of any sizes -> detections in pixels of the upright image."""
        return self._serve(image_bytes)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve_examples(self, examples: tf.Tensor) -> Outputs:
        """Serialized tf.Example [b] with such a file as `image/encoded` -> as `serve_bytes`."""
        features = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        return self._serve(tf.io.parse_example(examples, features)["image/encoded"])


def export(
    model_dir: str | Path,
    out: str | Path,
    experiment: str | None = None,
    checkpoint: str | Path | None = None,
    input_size: Sequence[int] | None = None,
    annotation_file: str | Path | None = None,
    overwrite: bool = False,
) -> str:
    """Exports the detector trained in `model_dir` to the SavedModel `out`.

    Args:
      model_dir: a folder written by `lambdanet.detection.train`, with at least one checkpoint.
      out: the folder to write; must be new or empty, unless `overwrite`.
      experiment: the name of its experiment (default: from `model_dir`).
      checkpoint: the checkpoint, or a folder of checkpoints (default: the newest of `model_dir`).
      input_size: the height and width in pixels to which images are resized (default: as in training).
      annotation_file: a file with the class names (default: the experiment's, or class numbers).
      overwrite: whether a SavedModel in `out` is replaced.

    Returns:
      The path of the SavedModel.

    Raises:
      InputError: `model_dir` has no trained detector, its checkpoint does not fit, or `out` cannot be
        written.
    """
    check_output_dir(out, True, FILES, overwrite)
    params = load_experiment(model_dir, experiment)
    found = find_checkpoint(checkpoint or model_dir)
    names = find_class_names(params, annotation_file)
    size = set_input_size(params, input_size)
    model = build_detector(params)
    kind = load_weights(model, params, found)
    path = absolute(out)
    with tempfile.TemporaryDirectory() as folder:
        names_file = os.path.join(folder, "class_names.txt")
        write_names(names_file, names)
        served = DetectorModule(params, model, size, names, names_file)
        signatures = served.signatures()
        # Without gradients, the SavedModel is smaller and faster to write and load.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        with atomic_dir(path) as staging:
            tf.saved_model.save(served, staging, signatures=signatures, options=options)
    step = os.path.basename(found)
    print(
        f"exported the {kind} of {step} ({len(names) - 1} classes, {size[0]}x{size[1]} px, float32) to {path}"
    )
    return path


def find_class_names(params: Any, annotation_file: str | Path | None) -> list[str]:
    """Returns the class names of an annotation file, or class numbers if the experiment's is missing."""
    num_classes = params.task.model.num_classes
    path = annotation_file or params.task.annotation_file
    if path and (annotation_file or tf.io.gfile.exists(os.path.expanduser(path))):
        return annotations.read_class_names(path, num_classes)
    print(f"no annotation file ({path}): class names are class numbers")
    return ["background", *map(str, range(1, num_classes))]


def set_input_size(params: Any, input_size: Sequence[int] | None) -> list[int]:
    """Returns the image size, and sets the model's input size to it, padded to multiples of the stride."""
    model = params.task.model
    size = list(input_size or model.input_size[:2])
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise invalid("input_size", "height and width in pixels", size)
    model.input_size = [
        *preprocess_ops.compute_padded_size(size, 2**model.max_level),
        3,
    ]
    return size


def build_detector(params: Any) -> keras.Model:
    """Returns the detector of an experiment with fresh weights.

    Raises:
      InputError: the experiment is not one of detection.
    """
    if not isinstance(params.task, maskrcnn.MaskRCNNTask | retinanet.RetinaNetTask):
        raise invalid(
            "experiment", "one of Mask R-CNN or RetinaNet", type(params.task).__name__
        )
    return task_factory.get_task(params.task).build_model()
