# SPDX-License-Identifier: Apache-2.0
"""The training step of a detection experiment as one function, to compile and to time.

    step = build_train_step("maskrcnn_lambda_resnet_coco", batch_size=2)
    step.function(*step.inputs)  # proposals, losses, gradients and the optimizer -> the loss
    step.function.get_concrete_function(*step.inputs)

The step is Model Garden's own, with the task, model and optimizer of the experiment, for one replica. Its
inputs have the shapes and types that the input pipeline yields; all shapes are static.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.backend import compat
from lambdanet.core.errors import check_counts, invalid
from lambdanet.detection.configs import resolve
from lambdanet.detection.data.records import CORNERS
from lambdanet.detection.model_garden import task_factory, train_utils
from lambdanet.tpu_estimates.steps import TpuStep
from lambdanet.training.data.records import bytes_feature

IMAGE_SIDE = 256  # of the synthetic images; the input pipeline resizes them
NUM_OBJECTS = 8  # per synthetic image
BATCH = 8  # images per core of a TPU: 64 on 8 cores


class TrainStep(NamedTuple):
    """A training step: `function(*inputs)` trains `model` on one batch and returns the loss."""

    function: tf.types.experimental.PolymorphicFunction
    inputs: tuple[Any, Any]  # images [b, height, width, 3], labels
    model: keras.Model


def build_train_step(
    experiment: str, params_override: str = "", batch_size: int = 1
) -> TrainStep:
    """Returns the training step of an experiment and synthetic inputs for it.

    Args:
      experiment: one of `experiments.list_experiments()`.
      params_override: changes to its configuration, as `resolve.resolve` takes them.
      batch_size: the number of images per step.

    Raises:
      InputError: an unknown experiment, or a model that cannot be built.
    """
    params = resolve.resolve(experiment, params_override=params_override)
    params.override({"task": {"init_checkpoint": None}})
    precision = params.runtime.mixed_precision_dtype or "float32"
    name = precision if precision == "float32" else f"mixed_{precision}"
    with compat.dtype_policy(name, keras):
        task = task_factory.get_task(params.task)
        model = task.build_model()
        optimizer = train_utils.create_optimizer(task, params)
        inputs = _synthetic_batch(task, batch_size)
    create_variables(optimizer, model)

    @tf.function
    def step(images: tf.Tensor, labels: Any) -> tf.Tensor:
        return task.train_step((images, labels), model=model, optimizer=optimizer)[
            task.loss
        ]

    return TrainStep(step, inputs, model)


def create_variables(optimizer: Any, model: keras.Model) -> None:
    """Creates the variables of an optimizer; a step that creates them itself is traced twice.

    Args:
      optimizer: an optimizer of Keras or Model Garden, legacy or not.
      model: the model that it trains.
    """
    create = getattr(optimizer, "_create_all_weights", None) or optimizer.build
    create(model.trainable_variables)


def _synthetic_batch(task: Any, batch_size: int) -> tuple[Any, Any]:
    """Returns images and labels, read through the input pipeline of the task."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "synthetic.tfrecord")
        rng = np.random.default_rng(0)
        with tf.io.TFRecordWriter(file) as writer:
            for number in range(batch_size):
                example = _synthetic_example(
                    rng, task.task_config.model.num_classes, number
                )
                writer.write(example.SerializeToString())
        data = task.task_config.train_data.replace(
            input_path=file,
            global_batch_size=batch_size,
            drop_remainder=True,
            shuffle_buffer_size=1,
        )
        return next(iter(task.build_inputs(data)))


def _synthetic_example(
    rng: np.random.Generator, num_classes: int, number: int
) -> tf.train.Example:
    """Returns an image of noise with rectangular objects."""
    first = rng.integers(0, IMAGE_SIDE // 2, [NUM_OBJECTS, 2])
    last = rng.integers(IMAGE_SIDE // 2 + 1, IMAGE_SIDE, [NUM_OBJECTS, 2])
    masks = np.zeros([NUM_OBJECTS, IMAGE_SIDE, IMAGE_SIDE, 1], np.uint8)
    for mask, (top, left), (bottom, right) in zip(masks, first, last, strict=True):
        mask[top:bottom, left:right] = 1
    boxes = np.concatenate([first, last], axis=1) / IMAGE_SIDE
    image = rng.integers(0, 256, [IMAGE_SIDE, IMAGE_SIDE, 3], np.uint8)
    return encode_example(
        image, boxes, rng.integers(1, num_classes, NUM_OBJECTS), masks, number
    )


def encode_example(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    masks: np.ndarray | Sequence[np.ndarray],
    number: int,
    crowd: bool = False,
) -> tf.train.Example:
    """Returns a record as Model Garden's converter writes it.

    Args:
      image: uint8 [height, width, 3], or [height, width, 1] for a gray one.
      boxes: [n, 4], top, left, bottom and right as fractions of the sides.
      labels: the classes of the n objects, from 1.
      masks: uint8 [n, height, width, 1], zeros and ones.
      number: the id of the image.
      crowd: whether the objects are crowds.
    """

    def integers(*values: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    height, width, _ = image.shape
    features = {
        "image/encoded": bytes_feature(tf.io.encode_jpeg(image).numpy()),
        "image/height": integers(height),
        "image/width": integers(width),
        "image/source_id": bytes_feature(str(number).encode()),
        "image/object/class/label": integers(*labels),
        "image/object/is_crowd": integers(*[int(crowd)] * len(labels)),
        "image/object/mask": bytes_feature(
            *[tf.io.encode_png(mask).numpy() for mask in masks]
        ),
    }
    for name, values in zip(CORNERS, np.reshape(boxes, [-1, 4]).T, strict=True):
        features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features))


def experiment_step(
    experiment: str,
    changes: Sequence[str] = (),
    mode: str = "train",
    batch_size: int = BATCH,
) -> TpuStep:
    """Returns the training step of an experiment for `lambdanet tpu-check`.

    Args:
      experiment: one of `experiments.list_experiments()`.
      changes: settings "key=value" for its configuration, such as "task.model.input_size=[640,640,3]".
      mode: "train", the only mode of a detection experiment.
      batch_size: the number of images per core.

    Raises:
      InputError: an unknown experiment or mode, or a configuration that cannot be used.
    """
    if mode != "train":
        raise invalid("mode", "'train' for a detection experiment", mode)
    check_counts(batch_size=batch_size)
    step = build_train_step(experiment, ",".join(changes), batch_size)
    specs = tuple(
        tf.TensorSpec(value.shape, value.dtype)
        for value in tf.nest.flatten(step.inputs)
    )

    def flat_step(*values: tf.Tensor) -> Any:
        return step.function(*tf.nest.pack_sequence_as(step.inputs, values))

    models = [
        layer.name for layer in step.model.submodules if isinstance(layer, keras.Model)
    ]
    return TpuStep(
        f"{experiment}, train", flat_step, specs, batch_size, (step.model.name, *models)
    )
