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

import tensorflow as tf
import tf_keras as keras

from lambdanet.backend import compat
from lambdanet.core.errors import check_counts, invalid
from lambdanet.detection.configs import resolve
from lambdanet.detection.model_garden import task_factory, train_utils
from lambdanet.tpu_estimates.steps import TpuStep

BATCH = 8  # images per core of a TPU: 64 on 8 cores


class TrainStep(NamedTuple):
    """A training step: `function(*inputs)` trains `model` on one batch and returns the loss."""

    function: tf.types.experimental.PolymorphicFunction
    inputs: tuple[Any, Any]  # images [b, height, width, 3], labels
    model: keras.Model


def build_train_step(
    experiment: str, params_override: str = "", batch_size: int = 1
) -> TrainStep:
    """Returns the training step of an experiment, and zeros as inputs for it.

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
        inputs = _zeros(task, batch_size)
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


def _zeros(task: Any, batch_size: int) -> tuple[Any, Any]:
    """Returns images and labels of zeros, as the input pipeline of the task has them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "empty.tfrecord"
        file.touch()
        data = task.task_config.train_data.replace(
            input_path=str(file), global_batch_size=batch_size, drop_remainder=True
        )
        specs = task.build_inputs(data).element_spec
    return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)


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
