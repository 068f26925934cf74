# SPDX-License-Identifier: Apache-2.0
"""The training step of a detection experiment as one function, for compiling and for measuring it.

    step, inputs = build("maskrcnn_lambda_resnet_coco", batch_size=2)
    step(*inputs)                  # a step: proposals, losses, gradients and the optimizer -> the loss
    step.get_concrete_function(*inputs)

`inputs` are images and labels of the shapes and types that the input pipeline gives a replica; all shapes are
static. The step is Model Garden's own, of the experiment's task, model and optimizer, for one replica.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.configs import resolve
from lambdanet.detection.data.records import CORNERS
from lambdanet.detection.model_garden import performance, task_factory, train_utils

SIDE = 256  # of the made-up images; the input pipeline scales them to those of the experiment
OBJECTS = 8  # on each of them


def build(
    experiment: str, params_override: str = "", batch_size: int = 1, seed: int = 0
) -> tuple[tf.types.experimental.PolymorphicFunction, tuple[Any, Any]]:
    """Returns a training step and what it takes.

    Args:
      experiment: of detection, one of `experiments.available()`.
      params_override: over it, as `configuration.resolve` takes it.
      batch_size: images in a step.
      seed: of the made-up images.

    Returns:
      A `tf.function` that takes images [batch_size, height, width, 3] and labels, and returns the loss; and
      such images and labels.

    Raises:
      InputError: an unknown experiment, or a model that cannot be built.
    """
    step, inputs, _ = build_with_model(experiment, params_override, batch_size, seed)
    return step, inputs


def build_with_model(
    experiment: str, params_override: str = "", batch_size: int = 1, seed: int = 0
) -> tuple[tf.types.experimental.PolymorphicFunction, tuple[Any, Any], keras.Model]:
    """Returns what `build` does, and the model that the step trains."""
    params = resolve.resolve(experiment, params_override=params_override)
    params.override({"task": {"init_checkpoint": None}})
    before = keras.mixed_precision.global_policy()
    performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype or "float32")
    try:
        task = task_factory.get_task(params.task)
        model = task.build_model()
        optimizer = train_utils.create_optimizer(task, params)
        inputs = _inputs(task, params.task.train_data, batch_size, params.task.model.num_classes, seed)
    finally:
        keras.mixed_precision.set_global_policy(before)
    optimizer._create_all_weights(
        model.trainable_variables
    )  # where they are made in a step, it is traced twice

    @tf.function
    def step(images: tf.Tensor, labels: Any) -> tf.Tensor:
        return task.train_step((images, labels), model=model, optimizer=optimizer)[task.loss]

    return step, inputs, model


def _inputs(task: Any, data: Any, batch_size: int, num_classes: int, seed: int) -> tuple[Any, Any]:
    """Returns a batch of made-up pictures, brought through the input pipeline of the task."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "made_up.tfrecord")
        rng = np.random.default_rng(seed)
        with tf.io.TFRecordWriter(file) as writer:
            for number in range(batch_size):
                writer.write(_made_up(rng, num_classes, number).SerializeToString())
        data = data.replace(input_path=file, global_batch_size=batch_size, drop_remainder=True)
        return next(iter(task.build_inputs(data)))


def _made_up(rng: np.random.Generator, num_classes: int, number: int) -> tf.train.Example:
    """Returns a picture of noise with objects that are rectangles."""
    first = rng.integers(0, SIDE // 2, [OBJECTS, 2])
    last = rng.integers(SIDE // 2 + 1, SIDE, [OBJECTS, 2])
    masks = np.zeros([OBJECTS, SIDE, SIDE, 1], np.uint8)
    for mask, (top, left), (bottom, right) in zip(masks, first, last, strict=True):
        mask[top:bottom, left:right] = 1
    boxes = np.concatenate([first, last], axis=1) / SIDE
    image = rng.integers(0, 256, [SIDE, SIDE, 3], np.uint8)
    return example(image, boxes, rng.integers(1, num_classes, OBJECTS), masks, number)


def example(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    masks: np.ndarray | Sequence[np.ndarray],
    number: int,
    crowd: bool = False,
) -> tf.train.Example:
    """Returns a record as Model Garden's converter writes it.

    Args:
      image: uint8 [height, width, 3], or 1 for a grey one.
      boxes: [n, 4]: top, left, bottom, right, as fractions of the sides.
      labels: of the n objects, from 1.
      masks: uint8 [n, height, width, 1], of zeros and ones.
      number: of the image.
      crowd: whether its objects are crowds.
    """

    def floats(values: np.ndarray) -> tf.train.Feature:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    def integers(*values: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def texts(*values: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    height, width, _ = image.shape
    features = {
        "image/encoded": texts(tf.io.encode_jpeg(image).numpy()),
        "image/height": integers(height),
        "image/width": integers(width),
        "image/source_id": texts(str(number).encode()),
        "image/object/class/label": integers(*labels),
        "image/object/is_crowd": integers(*[int(crowd)] * len(labels)),
        "image/object/mask": texts(*[tf.io.encode_png(mask).numpy() for mask in masks]),
    }
    for name, values in zip(CORNERS, np.reshape(boxes, [-1, 4]).T, strict=True):
        features[name] = floats(values)
    return tf.train.Example(features=tf.train.Features(feature=features))
