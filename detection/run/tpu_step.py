# SPDX-License-Identifier: Apache-2.0
"""The training step of a detection experiment for `lambdanet tpu-check`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.run import train_step
from lambdanet.errors import check_counts, invalid
from lambdanet.tpu.steps import TpuStep

BATCH = 8  # images per core: 64 on 8 cores


def experiment_step(
    experiment: str, changes: Sequence[str] = (), mode: str = "train", batch_size: int = BATCH
) -> TpuStep:
    """Returns the training step of an experiment.

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
    step = train_step.build(experiment, ",".join(changes), batch_size)
    specs = tuple(tf.TensorSpec(value.shape, value.dtype) for value in tf.nest.flatten(step.inputs))

    def flat(*values: tf.Tensor) -> Any:
        return step.function(*tf.nest.pack_sequence_as(step.inputs, values))

    models = [layer.name for layer in step.model.submodules if isinstance(layer, keras.Model)]
    return TpuStep(f"{experiment}, train", flat, specs, batch_size, (step.model.name, *models))
