# SPDX-License-Identifier: Apache-2.0
"""The model, the optimizer and the loss of a recipe."""

import dataclasses
import pkgutil
from typing import Any

import numpy as np

from lambdanet.backend import compat, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import LOSSES, OPTIMIZERS
from lambdanet.errors import invalid
from lambdanet.models import zoo
from lambdanet.training.run import optimizers
from lambdanet.training.run.losses import Accuracy
from lambdanet.training.run.schedules import WarmupSchedule
from lambdanet.training.run.train_step import accumulate_gradients, rematerialize


def build_model_for_training(recipe: Recipe) -> keras.Model:
    """Returns the recipe's model, for images of any size where training has another one than evaluation.

    Raises:
      InputError: as `build_model`, or weights of the model depend on the size, as tables of global scope do.
    """
    model = build_model(recipe)
    if recipe.training_size == recipe.input_size:
        return model
    other = build_model(dataclasses.replace(recipe, input_size=recipe.training_size))
    if [weight.shape for weight in model.weights] != [
        weight.shape for weight in other.weights
    ]:
        accepted = (
            f"empty for {recipe.model}, which has weights that depend on the size"
        )
        raise invalid("sizes", accepted, recipe.sizes)
    return build_model(recipe, any_size=True)


def build_model(recipe: Recipe, any_size: bool = False) -> keras.Model:
    """Returns the recipe's model with fresh weights, for images of its `input_size` or of any size.

    Raises:
      InputError: there is no such model, or it does not take these `model_options`.
    """
    arguments: dict[str, Any] = {
        "num_classes": recipe.num_classes,
        "input_size": None if any_size else recipe.input_size,
        "in_channels": len(recipe.mean),
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "kernel_regularizer": _kernel_regularizer(recipe),
        "batch_norm": {
            "momentum": recipe.bn_momentum,
            "synchronized": recipe.sync_batch_norm,
        },
    }
    if recipe.position_stddev != 1:  # that of the layers
        arguments["embeddings_initializer"] = compat.RandomNormal(
            stddev=recipe.position_stddev
        )
    for key in recipe.model_options:
        if key in arguments or key in ("features_only", "weights"):
            raise invalid("model_options", "options of the model's layers", key)
    with compat.dtype_policy("mixed_bfloat16" if recipe.mixed_precision else "float32"):
        return zoo.create_model(recipe.model, **{**arguments, **recipe.model_options})


def _kernel_regularizer(recipe: Recipe) -> keras.regularizers.Regularizer | None:
    if not recipe.weight_decay or recipe.decays_in_steps:
        return None
    return keras.regularizers.L2(recipe.weight_decay / 2)


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
    """Returns the recipe's optimizer, with its learning rate schedule, clipping and decay."""
    row = OPTIMIZERS[recipe.optimizer]
    kind = getattr(optimizers, row.kind, None) or getattr(keras.optimizers, row.kind)
    arguments: dict[str, Any] = {
        row.momentum: recipe.momentum,
        "learning_rate": build_schedule(recipe, steps_per_epoch),
        # In the paths of variables, where Keras would count its optimizers.
        "name": recipe.optimizer,
        "use_ema": recipe.ema_decay > 0,
        "ema_momentum": recipe.ema_decay,
        # By default, RMSprop replaces the weights by the averages.
        "ema_overwrite_frequency": None,
        **recipe.optimizer_options,
    }
    if recipe.decays_in_steps:
        arguments["weight_decay"] = recipe.weight_decay
    if recipe.clip_norm:
        arguments["global_clipnorm"] = recipe.clip_norm
    if recipe.clip_adaptive:
        arguments["clip"] = optimizers.adaptive_clip(recipe.clip_adaptive)
    if (recipe.layer_decay, recipe.head_rate) != (1, 1):
        arguments["rate_factors"] = optimizers.layer_rate_factors(
            recipe.layer_decay, recipe.head_rate
        )
    return optimizers.with_options(kind)(**arguments)


def build_loss(recipe: Recipe) -> keras.losses.Loss:
    """Returns the recipe's loss of logits."""
    options = {"threshold": recipe.target_threshold} if recipe.target_threshold else {}
    return pkgutil.resolve_name(LOSSES[recipe.loss])(
        recipe.label_smoothing, recipe.class_weights, **options
    )


def compile_model(
    recipe: Recipe,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    steps_per_execution: int = 1,
) -> None:
    """Compiles a model for `fit` with the recipe's loss, and accuracy as its metric.

    The compiled function makes `steps_per_execution` training steps per call.
    """
    model.compile(
        optimizer=optimizer,
        loss=build_loss(recipe),
        weighted_metrics=[Accuracy()],  # the padding of evaluation batches has weight 0
        steps_per_execution=steps_per_execution,
    )
    create_metrics(model)
    if recipe.remat:
        model.call = rematerialize(model)
    if recipe.accumulate_steps > 1:
        model.train_step = accumulate_gradients(model, recipe.accumulate_steps)


def create_metrics(model: keras.Model) -> None:
    """Creates the variables of a compiled model's metrics, in place of its first step.

    Otherwise `fit` takes a batch of every dataset first (Keras 3.15), and with a strategy of TensorFlow at
    every evaluation one that is not there.
    """
    labels = np.zeros([1])
    logits = np.zeros([1, *model.output_shape[1:]], np.float32)
    for part in (model._compile_metrics, model._compile_loss):
        part.build(labels, logits)
    model._maybe_symbolic_build = lambda *args, **kwargs: None
