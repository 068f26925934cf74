# SPDX-License-Identifier: Apache-2.0
"""From a recipe to what Keras trains: the model, the optimizer, the loss."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tf_keras as keras

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError
from lambdanet.models import zoo
from lambdanet.training.run.losses import Accuracy, SmoothedCrossEntropy
from lambdanet.training.run.schedules import WarmupSchedule

OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adam": lambda momentum, **common: keras.optimizers.Adam(beta_1=momentum, **common),
    "rmsprop": lambda momentum, **common: keras.optimizers.RMSprop(momentum=momentum, **common),
    "sgd": lambda momentum, **common: keras.optimizers.SGD(momentum=momentum, **common),
}


def build_model(recipe: Recipe) -> keras.Model:
    """Returns the recipe's model with fresh weights.

    Raises:
      InputError: no such model, or `model_options` that it does not take.
    """
    arguments: dict[str, Any] = {
        "num_classes": recipe.num_classes,
        "input_size": recipe.input_size,
        "in_channels": len(recipe.mean),
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "kernel_regularizer": keras.regularizers.L2(recipe.weight_decay / 2) if recipe.weight_decay else None,
        "batch_norm": {"momentum": recipe.bn_momentum, "synchronized": recipe.sync_batch_norm},
    }
    own = [key for key in recipe.model_options if key in arguments or key in ("features_only", "weights")]
    if own:
        raise InputError(f"model_options received {own[0]!r}; accepted: options of the model's own layers")
    with policy("mixed_bfloat16" if recipe.mixed_precision else "float32"):
        return zoo.create_model(recipe.model, **{**arguments, **recipe.model_options})


def build_schedule(recipe: Recipe, steps_per_epoch: int) -> WarmupSchedule:
    """Returns the learning rate of the recipe at each step."""
    return WarmupSchedule(
        recipe.learning_rate,
        total_steps=recipe.epochs * steps_per_epoch,
        warmup_steps=round(recipe.warmup_epochs * steps_per_epoch),
        shape=recipe.schedule,
        floor=recipe.cosine_floor,
        decay_rate=recipe.decay_rate,
        decay_steps=recipe.decay_epochs * steps_per_epoch,
    )


def build_optimizer(recipe: Recipe, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    """Returns the recipe's optimizer with its learning rate schedule."""
    return OPTIMIZERS[recipe.optimizer](
        recipe.momentum,
        learning_rate=build_schedule(recipe, steps_per_epoch),
        use_ema=recipe.ema_decay > 0,
        ema_momentum=recipe.ema_decay,
        ema_overwrite_frequency=None,  # RMSprop's own default would put the averages in place of the weights
        **recipe.optimizer_options,
    )


def compile_model(
    recipe: Recipe, model: keras.Model, optimizer: keras.optimizers.Optimizer, steps_per_execution: int = 1
) -> None:
    """Compiles the model for `fit` with the recipe's loss, and accuracy as its metric.

    Args:
      recipe: of the run.
      model: of the recipe.
      optimizer: of the recipe.
      steps_per_execution: how many steps run between two looks of Python at them.
    """
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(recipe.label_smoothing),
        weighted_metrics=[Accuracy()],  # what fills up the batches of an evaluation weighs nothing
        steps_per_execution=steps_per_execution,
    )


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Makes layers built inside compute in the precision of a Keras policy, and restores the one before."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)
