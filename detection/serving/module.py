# SPDX-License-Identifier: Apache-2.0
"""The computation of an exported detector: images -> boxes in their pixels, classes, scores and masks."""

import types
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.model_garden import detection_serving
from lambdanet.training.data.image_bytes import decode
from lambdanet.training.serving.module import ServingModule

OUTPUTS = ("detection_boxes", "detection_classes", "detection_scores", "num_detections", "detection_masks")


class ModelGardenModule(detection_serving.DetectionModule):
    """Model Garden's export module, extended to image files and boxes in pixels of the input."""

    def _build_inputs(self, image):
        return super()._build_inputs(decode(image) if image.dtype == tf.string else image)

    def serve(self, images):
        outputs = super().serve(images)
        size, scale = outputs["image_info"][:, 0:1, :], outputs["image_info"][:, 2:3, :]  # [b, 1, 2] each
        boxes = tf.cast(outputs["detection_boxes"], tf.float32) / tf.tile(scale, [1, 1, 2])
        outputs["detection_boxes"] = tf.clip_by_value(boxes, 0.0, tf.tile(size, [1, 1, 2]))
        return {
            name: tf.cast(outputs[name], tf.float32) if outputs[name].dtype.is_floating else outputs[name]
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

    SIGNATURES = {**ServingModule.SIGNATURES, "serving_examples": "serve_examples"}

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
            params=params, model=model, batch_size=None, input_image_size=list(input_size)
        )
        # Traced once for all signatures. The Keras model must not be reachable from this object's attributes,
        # or it would be saved too.
        detector.model = types.SimpleNamespace(call=tf.function(model.call))
        self._serve = detector.serve
        self.model_variables = list(model.variables)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")])
    def serve_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """uint8 RGB images [b, h, w, 3] of any size -> detections."""
        return self._serve(images)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """JPEG, PNG or WebP files [b] of any sizes -> detections in pixels of the upright image."""
        return self._serve(image_bytes)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Serialized tf.Example [b] with such a file as `image/encoded` -> as `serve_bytes`."""
        features = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        return self._serve(tf.io.parse_example(examples, features)["image/encoded"])
