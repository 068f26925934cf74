# SPDX-License-Identifier: Apache-2.0
"""Model Garden's tasks with the additions of `ZooTaskMixin`.

The configuration of each has the keys and defaults of Model Garden's own; its class selects the task.
"""

import dataclasses
import os
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.backend.tensors import ceil_div
from lambdanet.core.errors import invalid, unknown
from lambdanet.detection.data import records
from lambdanet.detection.model_garden import (
    backbone_configs,
    hyperparams,
    image_classification,
    image_classification_tasks,
    maskrcnn,
    maskrcnn_tasks,
    retinanet,
    retinanet_tasks,
    segmentation_tasks,
    semantic_segmentation,
    task_factory,
)
from lambdanet.detection.modeling import backbones, initialize

MAX_STRIDE = 32  # of the last endpoint of a backbone


@dataclasses.dataclass
class MaskRCNNTask(maskrcnn.MaskRCNNTask):
    """Faster, Mask and Cascade R-CNN."""


@dataclasses.dataclass
class RetinaNetTask(retinanet.RetinaNetTask):
    """RetinaNet."""


@dataclasses.dataclass
class ImageClassificationTask(image_classification.ImageClassificationTask):
    """Image classification."""


@dataclasses.dataclass
class SemanticSegmentationTask(semantic_segmentation.SemanticSegmentationTask):
    """Semantic segmentation."""


# Model Garden's configuration of a task -> ours.
TASK_CLASSES: dict[Any, Any] = {
    ours.__bases__[0]: ours
    for ours in (
        MaskRCNNTask,
        RetinaNetTask,
        ImageClassificationTask,
        SemanticSegmentationTask,
    )
}


def to_zoo_task(task: hyperparams.Config) -> hyperparams.Config:
    """Returns a task's configuration with the class of this module, if there is one, and the same values.

    The model of any image task then accepts the backbones of the zoo.

    Args:
      task: the configuration of a task of Model Garden.

    Returns:
      The configuration to use instead of it.
    """
    task = _convert(TASK_CLASSES.get(type(task), type(task)), task)
    model: Any = getattr(task, "model", None)
    if type(getattr(model, "backbone", None)) is backbone_configs.Backbone:
        model.backbone = _convert(backbones.Backbone, model.backbone)
    return task


def _convert(
    kind: type[hyperparams.Config], config: hyperparams.Config
) -> hyperparams.Config:
    """Returns a configuration of class `kind` with the same values."""
    return kind(
        **{
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
        }
    )


def check_backbone(backbone: hyperparams.Config) -> None:
    """Checks the names in the configuration of a backbone.

    Args:
      backbone: `task.model.backbone` of an experiment.

    Raises:
      InputError: the type of the backbone, or its `model_id`, is unknown; the message has the nearest names.
    """
    if backbone.type not in backbone.__dict__:
        accepted = {field.name for field in dataclasses.fields(backbone)} - {"type"}
        raise unknown("task.model.backbone.type", str(backbone.type), accepted)
    if backbone.type in backbones.FAMILIES:
        backbones.check_model_id(backbone.type, backbone.get().model_id)


def check_model(model: hyperparams.Config) -> None:
    """Rejects a model that cannot be built, or would fail after it is built.

    Args:
      model: `task.model` of an experiment.

    Raises:
      InputError: an unknown backbone, an input size that is not divisible by the strides, or a decoder
        that does not add the missing levels.
    """
    check_backbone(model.backbone)
    size = list(model.input_size or [])
    if isinstance(model, semantic_segmentation.SemanticSegmentationModel):
        # For images of any size.
        size = [1 if side is None else side for side in size]
    if len(size) != 3 or not all(isinstance(side, int) and side > 0 for side in size):
        raise invalid("task.model.input_size", "[height, width, channels]", size)
    if not hasattr(model, "detection_generator"):  # no detector: images of any size
        return
    if model.backbone.type in backbones.FAMILIES and model.decoder.type == "identity":
        accepted = f"fpn or nasfpn with the backbone {model.backbone.type!r}"
        raise invalid("task.model.decoder.type", accepted, model.decoder.type)
    stride = max(MAX_STRIDE, 2**model.max_level)
    for side in size[:2]:
        if side % stride:
            near = sorted(
                {max(side // stride, 1) * stride, ceil_div(side, stride) * stride}
            )
            accepted = f"divisible by {stride}, the stride of the smallest map"
            hint = f"{' or '.join(map(str, near))} would do instead of {side}"
            raise invalid("task.model.input_size", accepted, size, hint)


class ZooTaskMixin:
    """Additions to the tasks of Model Garden.

    * Images are decoded upright and on white, as in exported models.
    * Models are checked before they are built, and records before they are used.
    * With `use_sync_bn`, the batch normalization of the mask head is synchronized too.
    * `init_checkpoint` may be a model_dir of `lambdanet train`, a weights file or published weights.
    * The last batch of an evaluation may leave a replica without images.
    * Annotations generated from the validation data of an earlier run are not reused.
    """

    task_config: Any
    _logging_dir: str

    def build_model(self) -> keras.Model:
        """Builds the model from checked settings."""
        check_model(self.task_config.model)
        model = super().build_model()  # type: ignore[misc]
        mask_head = getattr(model, "mask_head", None)
        if mask_head is not None and self.task_config.model.norm_activation.use_sync_bn:
            synchronize_batch_norm(mask_head)
        return model

    def initialize(self, model: keras.Model) -> None:
        """Assigns the weights of `init_checkpoint`."""
        source = self.task_config.init_checkpoint
        if source and not initialize.load_zoo_weights(model.backbone, source):
            with initialize.verified_checkpoint(
                source, model, self.task_config.init_checkpoint_modules
            ):
                super().initialize(model)  # type: ignore[misc]

    def build_inputs(self, *args: Any, **options: Any) -> tf.data.Dataset:
        """Builds the dataset, with the decoder of exported models."""
        with records.use_shared_decoder():
            return super().build_inputs(*args, **options)  # type: ignore[misc]

    def build_metrics(self, training: bool = True) -> list[Any]:
        """Builds the metrics, without annotations of earlier runs."""
        generated = os.path.join(self._logging_dir or "", "annotation.json")
        if not training and self._logging_dir and tf.io.gfile.exists(generated):
            tf.io.gfile.remove(generated)
        with records.use_shared_decoder():
            return super().build_metrics(training)  # type: ignore[misc]


class DetectionMixin(ZooTaskMixin):
    """Evaluates a detector of the zoo, also on batches without images."""

    coco_metric: Any

    def validation_step(
        self, inputs: Any, model: keras.Model, metrics: list[Any] | None = None
    ) -> Any:
        """Evaluates a batch; an empty one as one black image, whose detections are dropped.

        TensorFlow's CPU convolutions return a wrong shape for an empty batch, which fails the evaluation.
        """
        if inputs[0].shape[0] is not None:
            return super().validation_step(inputs, model, metrics)  # type: ignore[misc]
        size = tf.shape(inputs[0])[0]

        def pad(x: tf.Tensor) -> tf.Tensor:
            return tf.pad(
                x, [[0, tf.maximum(1 - size, 0)], *([[0, 0]] * (x.shape.rank - 1))]
            )

        inputs = tf.nest.map_structure(pad, inputs)
        logs = super().validation_step(inputs, model, metrics)  # type: ignore[misc]
        name = self.coco_metric.name if self.task_config.use_coco_metrics else None
        if name in logs:
            logs[name] = tf.nest.map_structure(lambda x: x[:size], logs[name])
        return logs


@task_factory.register_task_cls(MaskRCNNTask)
class MaskRCNN(DetectionMixin, maskrcnn_tasks.MaskRCNNTask):
    """Faster, Mask and Cascade R-CNN."""

    def build_inputs(
        self, params: Any, input_context: Any = None, dataset_fn: Any = None
    ) -> tf.data.Dataset:
        """Builds Model Garden's data set from checked records."""
        if dataset_fn is None and params.decoder.type == "simple_decoder":
            dataset_fn = records.checked_reader(params, self.task_config.model)
        return super().build_inputs(params, input_context, dataset_fn)


@task_factory.register_task_cls(RetinaNetTask)
class RetinaNet(DetectionMixin, retinanet_tasks.RetinaNetTask):
    """RetinaNet."""


@task_factory.register_task_cls(ImageClassificationTask)
class ImageClassification(
    ZooTaskMixin, image_classification_tasks.ImageClassificationTask
):
    """Image classification."""


@task_factory.register_task_cls(SemanticSegmentationTask)
class SemanticSegmentation(ZooTaskMixin, segmentation_tasks.SemanticSegmentationTask):
    """Semantic segmentation."""


def synchronize_batch_norm(layer: keras.layers.Layer) -> None:
    """Makes the batch normalization in a layer compute its statistics over all replicas.

    Model Garden 2.20 does not pass `use_sync_bn` to its mask head.
    """
    for part in layer.submodules:
        if isinstance(part, keras.layers.BatchNormalization):
            part.synchronized = True
            part.fused = False  # the fused kernel computes per replica
