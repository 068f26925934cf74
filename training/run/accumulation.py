# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: a step on a large batch whose activations are those of a small one."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.training.run.stateless_dropout import part_of_step


def accumulated_step(model: keras.Model, parts: int) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns a `train_step` that adds up the gradients of the parts of a batch, one after the other.

    It equals the step on the whole batch, except that batch normalization sees the parts: their statistics,
    `parts` times per step.

    Args:
      model: a compiled model.
      parts: the number of parts, which divides the batch of a device.

    Example:
      >>> model.train_step = accumulated_step(model, 4)
    """

    def gradients_of(number: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with part_of_step(number), tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = model.compute_loss(images, labels, logits) / parts
        model.compiled_metrics.update_state(labels, logits)
        return tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")

    def step(data: Any) -> dict[str, tf.Tensor]:
        images, labels = (tf.reshape(x, [parts, -1, *x.shape[1:]]) for x in data)

        def add(number: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            found = gradients_of(number, images[number], labels[number])
            return [number + 1, *map(tf.add, sums, found)]

        zeros = [tf.zeros(variable.shape) for variable in model.trainable_variables]
        _, *sums = tf.while_loop(
            lambda number, *sums: number < parts, add, [tf.constant(0), *zeros], parallel_iterations=1
        )
        model.optimizer.apply_gradients(zip(sums, model.trainable_variables, strict=True))
        return model.get_metrics_result()

    return step
