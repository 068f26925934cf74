# SPDX-License-Identifier: Apache-2.0
"""The training step of a detection experiment as `lambdanet tpu-check` compiles it."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.run import train_step
from lambdanet.errors import InputError, check_counts
from lambdanet.training.tpu.steps import TpuStep

BATCH = 8  # images on a core: 64 on 8


def experiment_step(
    experiment: str, changes: Sequence[str] = (), mode: str = "train", batch: int = BATCH
) -> TpuStep:
    """Returns the training step of an experiment.

    Args:
      experiment: of detection, one of `experiments.available()`.
      changes: texts "key=value" over its configuration, such as "task.model.input_size=[640,640,3]".
      mode: "train".
      batch: images on the core.

    Raises:
      InputError: an unknown experiment or mode, or a configuration that cannot be used.
    """
    if mode != "train":
        raise InputError(f"mode is {mode!r}; accepted: 'train', the step of a detection experiment")
    check_counts(batch=batch)
    function, inputs, model = train_step.build_with_model(experiment, ",".join(changes), batch)
    specs = tuple(tf.TensorSpec(value.shape, value.dtype) for value in tf.nest.flatten(inputs))

    def flat(*values: tf.Tensor) -> Any:
        return function(*tf.nest.pack_sequence_as(inputs, values))

    models = [layer.name for layer in model.submodules if isinstance(layer, keras.Model)]
    return TpuStep(f"{experiment}, train", flat, specs, batch, (model.name, *models))
