# SPDX-License-Identifier: Apache-2.0
"""Training steps that need less memory: gradient accumulation, and activations that are computed again."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import ENGINE, keras
from lambdanet.backend.device import num_devices
from lambdanet.errors import invalid
from lambdanet.training.run.optimizers import inner, layer_group


def accumulate_gradients(model: keras.Model, parts: int) -> Callable[..., Any]:
    """Returns a `train_step` that adds up the gradients of the parts of a batch, one after the other.

    It equals the step on the whole batch, except that batch normalization sees the parts: their statistics,
    `parts` times per step. (With Keras's `gradient_accumulation_steps`, each part moves the averages.)

    Args:
      model: a compiled model.
      parts: the number of parts, which divides the batch of a device.

    Example:
      >>> model.train_step = accumulate_gradients(model, 4)
    """
    return (_jax_step if ENGINE == "jax" else _tensorflow_step)(model, parts)


def average_weights(model: keras.Model) -> Callable[..., Any]:
    """Returns a `train_step` that also moves the averages of weights and batch statistics.

    Args:
      model: a compiled model, whose optimizer is of `build_optimizer`.
    """
    step = model.train_step
    optimizer = model.optimizer

    def tensorflow_step(data: Any) -> Any:
        logs = step(data)
        move_averages(optimizer, model.weights)
        return logs

    def jax_step(state: Any, data: Any) -> Any:
        logs, (weights, others, values, metrics) = step(state, data)
        variables = model.trainable_variables + model.non_trainable_variables
        variables += optimizer.variables
        pairs = zip(variables, [*weights, *others, *values], strict=True)
        with keras.StatelessScope(pairs) as scope:
            move_averages(optimizer, model.weights)
        values = [scope.get_current_value(v) for v in optimizer.variables]
        return logs, (weights, others, values, metrics)

    return jax_step if ENGINE == "jax" else tensorflow_step


def move_averages(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[Any]
) -> None:
    """Moves the averages after step t, from 1, with the decay min(ema_momentum, (1 + t) / (10 + t)).

    With `ema_momentum` alone, those of a short run would be the initial weights.

    Args:
      optimizer: the optimizer, of `build_optimizer`.
      weights: the weights, as for `build_optimizer`.
    """
    step = K.cast(optimizer.iterations, "float32")
    decay = K.minimum(inner(optimizer).ema_momentum, (1 + step) / (10 + step))
    for average, weight in zip(optimizer.averages, weights, strict=True):
        average.assign(average + (1 - decay) * (weight - average))


def rematerialize(model: keras.Model) -> Callable[..., Any]:
    """Returns a `call` of a model that in training keeps only what is between its blocks.

    Activations within a block are computed again in the backward pass (Chen et al. 2016), for about a third
    more computation. Outputs, gradients, batch statistics and random numbers equal the model's.

    Raises:
      InputError: a layer reads something else than its own block and the output of the one before.

    Example:
      >>> model.call = rematerialize(model)
    """
    pairs = [(layer_group(layer.name), layer) for layer in model.layers[1:]]
    ends = [
        list(group)[-1][1].output
        for _, group in itertools.groupby(pairs, key=lambda pair: pair[0])
    ]
    try:
        segments = [
            keras.Model(*pair)
            for pair in zip([model.input, *ends[:-1]], ends, strict=True)
        ]
    except ValueError:  # of Keras: the graph is disconnected
        accepted = f"false for {model.name}, whose blocks do not follow each other"
        raise invalid("remat", accepted, True) from None

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training:
            return type(model).call(model, inputs, training=training, mask=mask)
        for segment in segments:
            inputs = _call_again_in_backward_pass(segment, inputs)
        return inputs

    return call


def _call_again_in_backward_pass(segment: keras.Model, inputs: Any) -> Any:
    """Calls a model in training; its state is an argument, so both passes draw the same random numbers."""
    weights = segment.trainable_variables
    state = segment.non_trainable_variables

    @keras.remat
    def compute(weights: Any, state: Any, inputs: Any) -> Any:
        outputs, values = segment.stateless_call(weights, state, inputs, training=True)
        pairs = enumerate(zip(state, values, strict=True))
        return outputs, {number: new for number, (old, new) in pairs if new is not old}

    outputs, changed = compute(
        [v.value for v in weights], [v.value for v in state], inputs
    )
    # Frozen weights stay as they are; those that were read are cast in mixed precision.
    for number, value in changed.items():
        state[number].assign(value)
    return outputs


def _jax_step(model: keras.Model, parts: int) -> Callable[..., Any]:
    import jax

    compute_gradients = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def split(x: Any) -> Any:  # so that each device has its own share of every part
        by_device = x.reshape(num_devices(), parts, -1, *x.shape[1:])
        return by_device.swapaxes(0, 1).reshape(parts, -1, *x.shape[1:])

    def step(state: Any, data: Any) -> Any:
        weights, statistics, optimizer, metrics = state
        batch = [split(x) for x in data[:2]]

        def add(carry: Any, part: Any) -> Any:
            statistics, metrics, sums = carry
            (_, (loss, logits, statistics, metrics)), gradients = compute_gradients(
                weights,
                statistics,
                metrics,
                *part,
                None,
                training=True,
                optimizer_variables=optimizer,
            )
            _, metrics = model._update_metrics_variables(
                metrics, loss, *part, logits, None
            )
            return (
                statistics,
                metrics,
                [s + g / parts for s, g in zip(sums, gradients, strict=True)],
            ), None

        start = (
            statistics,
            metrics,
            [jax.numpy.zeros_like(weight) for weight in weights],
        )
        (statistics, metrics, sums), _ = jax.lax.scan(add, start, batch)
        weights, optimizer = model.optimizer.stateless_apply(optimizer, sums, weights)
        with keras.StatelessScope(zip(model.metrics_variables, metrics, strict=True)):
            logs = model.get_metrics_result()
        return logs, (weights, statistics, optimizer, metrics)

    return step


def _tensorflow_step(model: keras.Model, parts: int) -> Callable[..., Any]:
    import tensorflow as tf

    def step(data: Any) -> Any:
        # The height and width are unknown where evaluation has other ones: `sizes`.
        images, labels = (
            tf.reshape(x, tf.concat([[parts, -1], tf.shape(x)[1:]], axis=0))
            for x in data[:2]
        )

        def add(number: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            x = images[number]
            y = labels[number]
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = model.compute_loss(x, y, logits, training=True)
                scaled = model.optimizer.scale_loss(loss)
            gradients = tape.gradient(
                scaled, model.trainable_weights, unconnected_gradients="zero"
            )
            # Keras divides losses by their number
            replicas = model.distribute_strategy.num_replicas_in_sync
            model._loss_tracker.update_state(
                loss * replicas, sample_weight=tf.shape(x)[0]
            )
            model.compute_metrics(x, y, logits)
            return [
                number + 1,
                *(s + g / parts for s, g in zip(sums, gradients, strict=True)),
            ]

        start = [
            tf.constant(0),
            *(tf.zeros(variable.shape) for variable in model.trainable_weights),
        ]
        sums = tf.while_loop(
            lambda number, *sums: number < parts, add, start, parallel_iterations=1
        )[1:]
        model.optimizer.apply_gradients(zip(sums, model.trainable_weights, strict=True))
        return model.get_metrics_result()

    return step
