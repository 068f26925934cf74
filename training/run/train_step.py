# SPDX-License-Identifier: Apache-2.0
"""Training steps that need less memory: gradient accumulation, with another forward pass if needed."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.training.run.stateless_dropout import part_of_step

Forward = Callable[[tf.Tensor], tf.Tensor]  # images -> logits, in training


def create_train_step(
    model: keras.Model, parts: int = 1, forward: Forward | None = None
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns a `train_step` that adds up the gradients of the parts of a batch, one after the other.

    It equals the step on the whole batch, except that batch normalization sees the parts: their statistics,
    `parts` times per step.

    Args:
      model: a compiled model.
      parts: the number of parts, which divides the batch of a device.
      forward: the forward pass, such as `rematerialize(model)`; None: the model's.

    Example:
      >>> model.train_step = create_train_step(model, 4)
    """
    compute_logits = forward or (lambda images: model(images, training=True))

    def gradients_of(images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = compute_logits(images)
            loss = model.compute_loss(images, labels, logits) / parts
        model.compiled_metrics.update_state(labels, logits)
        statistics = [tf.identity(variable) for variable in model.non_trainable_variables]
        gradients = tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")
        for variable, value in zip(model.non_trainable_variables, statistics, strict=True):
            variable.assign(value)  # a forward pass within the backward pass has moved them again
        return gradients

    def sum_of_parts(images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        images, labels = (  # the height and width are unknown where they change: `sizes`
            tf.reshape(x, tf.concat([[parts, -1], tf.shape(x)[1:]], axis=0)) for x in (images, labels)
        )

        def add(number: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            with part_of_step(number):
                found = gradients_of(images[number], labels[number])
            return [number + 1, *map(tf.add, sums, found)]

        start = [tf.constant(0), *(tf.zeros(variable.shape) for variable in model.trainable_variables)]
        return tf.while_loop(lambda number, *sums: number < parts, add, start, parallel_iterations=1)[1:]

    def step(data: Any) -> dict[str, tf.Tensor]:
        gradients = (gradients_of if parts == 1 else sum_of_parts)(*data)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return model.get_metrics_result()

    return step
