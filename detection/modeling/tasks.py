# SPDX-License-Identifier: Apache-2.0
"""Model Garden's tasks, with what they lack: see `_Added`.

The configuration of a task has the keys and defaults of Model Garden's own; its class is what says that the
task is one of these.
"""

import dataclasses
import os
from typing import Any

import tensorflow as tf
import tf_keras as keras

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
    task_factory,
)
from lambdanet.detection.modeling import backbones, initialize
from lambdanet.errors import InputError, unknown

LARGEST_STRIDE = 32  # of the backbones


@dataclasses.dataclass
class MaskRCNNTask(maskrcnn.MaskRCNNTask):
    """Faster, Mask and Cascade R-CNN."""


@dataclasses.dataclass
class RetinaNetTask(retinanet.RetinaNetTask):
    """RetinaNet."""


@dataclasses.dataclass
class ImageClassificationTask(image_classification.ImageClassificationTask):
    """Image classification."""


_TASKS = (MaskRCNNTask, RetinaNetTask, ImageClassificationTask)
OWN: dict[Any, Any] = {base: own for own in _TASKS for base in own.__bases__}


def own(task: hyperparams.Config) -> hyperparams.Config:
    """Returns the same configuration for the task here instead of Model Garden's, where there is one.

    Its model can choose the backbones of the zoo too; so can the models of other tasks.
    """
    task = _as(OWN.get(type(task), type(task)), task)
    model: Any = getattr(task, "model", None)
    if type(getattr(model, "backbone", None)) is backbone_configs.Backbone:
        model.backbone = _as(backbones.Backbone, model.backbone)
    return task


def _as(kind: type[hyperparams.Config], config: hyperparams.Config) -> hyperparams.Config:
    """Returns a configuration of another class with the values of this one."""
    return kind(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


def check_backbone(backbone: hyperparams.Config) -> None:
    """Refuses a choice of a backbone that does not exist.

    Raises:
      InputError: with the names that come near.
    """
    if backbone.type not in backbone.__dict__:
        accepted = {field.name for field in dataclasses.fields(backbone)} - {"type"}
        raise unknown("task.model.backbone.type", str(backbone.type), accepted)
    if backbone.type in backbones.FAMILIES:
        backbones.check_model_id(backbone.type, backbone.get().model_id)


def check_model(model: hyperparams.Config) -> None:
    """Refuses a model that could not be built, or would be built and fail later.

    Raises:
      InputError: an unknown backbone, an image size that its strides do not divide, or a decoder that does
        not add the levels which it lacks.
    """
    check_backbone(model.backbone)
    size = list(model.input_size or [])
    if len(size) != 3 or not all(isinstance(side, int) and side > 0 for side in size):
        raise InputError(f"task.model.input_size must be [height, width, channels], got {size}")
    if "max_level" not in model:  # a classifier, for images of any size
        return
    if model.backbone.type in backbones.FAMILIES and model.decoder.type == "identity":
        raise InputError(
            f"task.model.decoder.type must be fpn or nasfpn with the backbone {model.backbone.type!r}, "
            "got 'identity'"
        )
    stride = max(LARGEST_STRIDE, 2**model.max_level)
    for side in size[:2]:
        if side % stride:
            near = sorted({max(side // stride, 1) * stride, -(-side // stride) * stride})
            raise InputError(
                f"task.model.input_size received {size}: {side} is not divisible by {stride}, the stride of "
                f"the smallest map; {' or '.join(map(str, near))} would do"
            )


class _Added:
    """What the tasks here add to those of Model Garden.

    * Pictures are decoded upright and on white, as exported models decode them.
    * A model is checked before it is built, and a record before it is used.
    * The batch normalisation of the mask head is synchronised where that of the rest is.
    * `init_checkpoint` may also name a model_dir of `lambdanet train`, a file of weights, or published ones.
    * A replica may be left without an image by the last batch of an evaluation.
    * The annotations that are read off the validation data are those of this data, not of an earlier run.
    """

    task_config: Any
    _logging_dir: str

    def build_model(self) -> keras.Model:
        check_model(self.task_config.model)
        model = super().build_model()  # type: ignore[misc]
        mask_head = getattr(model, "mask_head", None)
        if mask_head is not None and self.task_config.model.norm_activation.use_sync_bn:
            synchronize(mask_head)
        return model

    def initialize(self, model: keras.Model) -> None:
        source = self.task_config.init_checkpoint
        if source and not initialize.from_zoo(model.backbone, source):
            with initialize.explained(source, model, self.task_config.init_checkpoint_modules):
                super().initialize(model)  # type: ignore[misc]

    def build_inputs(self, *args: Any, **options: Any) -> tf.data.Dataset:
        with records.own_decoder():
            return super().build_inputs(*args, **options)  # type: ignore[misc]

    def build_metrics(self, training: bool = True) -> list[Any]:
        generated = os.path.join(self._logging_dir or "", "annotation.json")
        if not training and self._logging_dir and tf.io.gfile.exists(generated):
            tf.io.gfile.remove(generated)
        with records.own_decoder():
            return super().build_metrics(training)  # type: ignore[misc]


class _Detection(_Added):
    coco_metric: Any

    def validation_step(self, inputs: Any, model: keras.Model, metrics: list[Any] | None = None) -> Any:
        """Evaluates a batch; one without images as a black image, whose detections are thrown away.

        Convolutions of TensorFlow's CPU kernels give an empty batch a wrong shape, at which the evaluation
        would end.
        """
        if inputs[0].shape[0] is not None:
            return super().validation_step(inputs, model, metrics)  # type: ignore[misc]
        size = tf.shape(inputs[0])[0]

        def padded(x: tf.Tensor) -> tf.Tensor:
            return tf.pad(x, [[0, tf.maximum(1 - size, 0)], *([[0, 0]] * (x.shape.rank - 1))])

        inputs = tf.nest.map_structure(padded, inputs)
        logs = super().validation_step(inputs, model, metrics)  # type: ignore[misc]
        name = self.coco_metric.name if self.task_config.use_coco_metrics else None
        if name in logs:
            logs[name] = tf.nest.map_structure(lambda x: x[:size], logs[name])
        return logs


@task_factory.register_task_cls(MaskRCNNTask)
class MaskRCNN(_Detection, maskrcnn_tasks.MaskRCNNTask):
    """Faster, Mask and Cascade R-CNN."""

    def build_inputs(self, params: Any, input_context: Any = None, dataset_fn: Any = None) -> tf.data.Dataset:
        """Builds the data set as Model Garden does, of records that are checked one by one."""
        if dataset_fn is None and params.decoder.type == "simple_decoder":
            dataset_fn = records.checked(params, self.task_config.model)
        return super().build_inputs(params, input_context, dataset_fn)


@task_factory.register_task_cls(RetinaNetTask)
class RetinaNet(_Detection, retinanet_tasks.RetinaNetTask):
    """RetinaNet."""


@task_factory.register_task_cls(ImageClassificationTask)
class ImageClassification(_Added, image_classification_tasks.ImageClassificationTask):
    """Image classification."""


def synchronize(layer: keras.layers.Layer) -> None:
    """Makes the batch normalisations of a layer compute their statistics over all replicas.

    Model Garden 2.20 does not pass `use_sync_bn` on to its mask head.
    """
    for part in layer.submodules:
        if isinstance(part, keras.layers.BatchNormalization):
            part.synchronized, part.fused = True, False  # the fused kernel knows one replica
