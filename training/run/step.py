# SPDX-License-Identifier: Apache-2.0
"""A training step, from a batch to new weights, in the order in which things happen.

`fit` calls the function of `build_train_step` as the model's `train_step`. It is written once for each
backend: forward pass, loss, gradients (in parts where the recipe accumulates), the sum over devices,
`optimizer.apply`, and the averages of weights. In `apply`, `RecipeOptimizer` clips all gradients, and then
decays and updates each weight at a learning rate of its own.

Patches on objects of others are these, and no others:

* `model.train_step` (`compile_model`, build.py) is the step below. Unnecessary if models of the zoo were a
  subclass of `keras.Model`, which other frameworks' loaders would then need.
* `model.call` (`rematerialize`) computes activations again. Unnecessary if `keras.RematScope`, which wraps
  single layers in Keras 3.15, wrapped blocks.
* `model._maybe_symbolic_build` (`create_metrics`, build.py) does nothing. Unnecessary if `fit` and `evaluate`
  took no batch of their data where the metrics are built.
* `strategy.reduce` of several workers (`StrategyDevices`, devices.py) averages scalars. Unnecessary if Keras
  did not average the logs of a step along an axis.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import ENGINE, Tensor, keras
from lambdanet.backend.device import num_devices
from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import invalid
from lambdanet.training.run.optimizers import (
    LAMB,
    adaptive_clip,
    inner,
    is_kernel,
    layer_group,
    layer_rate_factors,
)


def build_train_step(model: keras.Model, parts: int = 1) -> Callable[..., Any]:
    """Returns the `train_step` of a model, which `fit` compiles and calls with each batch.

    In several parts, it adds up their gradients, one after the other. It equals the step on the whole batch,
    except that batch normalization sees the parts: their statistics, `parts` times per step. (With Keras's
    `gradient_accumulation_steps`, each part moves the averages.)

    Args:
      model: a compiled model, whose optimizer is of `build_optimizer`.
      parts: the number of parts, which divides the batch of a device.

    Example:
      >>> model.train_step = build_train_step(model, 4)
    """
    return (_jax_step if ENGINE == "jax" else _tensorflow_step)(model, parts)


def _tensorflow_step(model: keras.Model, parts: int) -> Callable[..., Any]:
    import tensorflow as tf

    def compute_gradients(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = model.compute_loss(x, y, logits, training=True)
            scaled = model.optimizer.scale_loss(loss)  # with float16
        # Keras divides losses by the number of devices.
        loss *= model.distribute_strategy.num_replicas_in_sync
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        model.compute_metrics(x, y, logits)
        return tape.gradient(
            scaled, model.trainable_weights, unconnected_gradients="zero"
        )

    def add_gradients(images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        # The height and width are unknown where evaluation has other ones: `training_size`.
        images, labels = (
            tf.reshape(x, tf.concat([[parts, -1], tf.shape(x)[1:]], axis=0))
            for x in (images, labels)
        )

        def add(number: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            gradients = compute_gradients(images[number], labels[number])
            pairs = zip(sums, gradients, strict=True)
            return [number + 1, *(s + g / parts for s, g in pairs)]

        zeros = [tf.zeros(variable.shape) for variable in model.trainable_weights]
        return tf.while_loop(
            lambda number, *sums: number < parts,
            add,
            [tf.constant(0), *zeros],
            parallel_iterations=1,
        )[1:]

    def train_step(data: Any) -> Any:
        # Forward pass, loss and gradients.
        gradients = (compute_gradients if parts == 1 else add_gradients)(*data[:2])
        # Before they are clipped: Keras 3.15 sums them last, and clips those of each device.
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("SUM", list(gradients))
        # With float16, gradients are unscaled first, and a step is skipped where one is not finite.
        model.optimizer.apply(gradients, model.trainable_weights)
        move_averages(model.optimizer, model.weights)
        return model.get_metrics_result()

    return train_step


def _jax_step(model: keras.Model, parts: int) -> Callable[..., Any]:
    import jax

    # The forward pass, the loss, and with float16 its scale.
    compute = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def split(x: Any) -> Any:  # so that each device has its own share of every part
        by_device = x.reshape(num_devices(), parts, -1, *x.shape[1:])
        return by_device.swapaxes(0, 1).reshape(parts, -1, *x.shape[1:])

    def train_step(state: Any, data: Any) -> Any:
        weights, statistics, values, metrics = state

        def compute_gradients(statistics: Any, metrics: Any, batch: Any) -> Any:
            (_, (loss, logits, statistics, metrics)), gradients = compute(
                weights,
                statistics,
                metrics,
                *batch,
                None,
                training=True,
                optimizer_variables=values,
            )
            _, metrics = model._update_metrics_variables(
                metrics, loss, *batch, logits, None
            )
            return statistics, metrics, gradients

        def add(carry: Any, part: Any) -> Any:
            statistics, metrics, sums = carry
            results = compute_gradients(statistics, metrics, part)
            statistics, metrics, gradients = results
            sums = [s + g / parts for s, g in zip(sums, gradients, strict=True)]
            return (statistics, metrics, sums), None

        # Forward pass, loss and gradients.
        if parts == 1:
            results = compute_gradients(statistics, metrics, data[:2])
        else:
            zeros = [jax.numpy.zeros_like(weight) for weight in weights]
            batches = [split(x) for x in data[:2]]
            results, _ = jax.lax.scan(add, (statistics, metrics, zeros), batches)
        # The compiler has summed them over devices, as a batch is divided and a weight is not.
        statistics, metrics, gradients = results
        # With float16, gradients are unscaled first, and a step is skipped where one is not finite.
        weights, values = model.optimizer.stateless_apply(values, gradients, weights)
        variables = model.trainable_variables + model.non_trainable_variables
        variables += model.optimizer.variables + model.metrics_variables
        pairs = zip(variables, [*weights, *statistics, *values, *metrics], strict=True)
        with keras.StatelessScope(pairs) as scope:
            move_averages(model.optimizer, model.weights)
            logs = model.get_metrics_result()
        values = [scope.get_current_value(v) for v in model.optimizer.variables]
        return logs, (weights, statistics, values, metrics)

    return train_step


class RecipeOptimizer(keras.optimizers.Optimizer):
    """What the optimizer of a recipe does to gradients and weights; a base class, before one of Keras.

    1. `apply` clips the gradients of each output channel (`clip_adaptive`).
    2. Keras's `apply` clips all gradients together (`global_clipnorm`).
    3. It calls `update_step` for each weight, which decays a kernel at the learning rate of the weight.
    4. The `update_step` of the class of Keras, or of LAMB, updates the weight at this rate.

    Attributes:
      recipe: the recipe, for which `build_optimizer` made the class.
    """

    recipe: Recipe

    def build(self, variables: list[Any]) -> None:
        # Keras would decay all at one learning rate.
        self.exclude_from_weight_decay(variables)
        super().build(variables)
        decay = 0.0 if isinstance(self, LAMB) else self.weight_decay or 0.0
        self.decays = [decay * is_kernel(variable) for variable in variables]
        self.factors = layer_rate_factors(
            variables, self.recipe.layer_decay, self.recipe.head_rate
        )

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        limit = self.recipe.clip_adaptive
        if limit:
            variables = trainable_variables or self._trainable_variables
            pairs = zip(grads, variables, strict=True)
            grads = [adaptive_clip(g, variable, limit) for g, variable in pairs]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        rate = learning_rate * self.factors[index]
        if self.decays[index]:
            decay = K.cast(self.decays[index] * rate, variable.dtype)
            self.assign_sub(variable, variable * decay)
        super().update_step(gradient, variable, rate)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> list[Any]:
        """Keras's sum over the devices of TensorFlow, where the step has summed them already."""
        return list(grads_and_vars)


def move_averages(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[Any]
) -> None:
    """Moves the averages after step t, from 1, with the decay min(ema_momentum, (1 + t) / (10 + t)).

    With `ema_momentum` alone, those of a short run would be the initial weights. They also move after a step
    that float16 skips, as batch statistics do.

    Args:
      optimizer: the optimizer, of `build_optimizer`; without averages, nothing happens.
      weights: the weights, as for `build_optimizer`.
    """
    if not optimizer.averages:
        return
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
