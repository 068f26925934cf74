# SPDX-License-Identifier: Apache-2.0
"""The model, the optimizer and the learning rate of a recipe, and its compiled step.

In this order: what a recipe builds, and its learning rate at each step (`WarmupSchedule`). Losses and metrics
are those of its task (training/tasks).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import Tensor, compat, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import check_known, invalid, one_line
from lambdanet.training.data.task import task_of
from lambdanet.training.run.optimizers import (
    LossScaleOptimizer,
    class_of,
    parameters_of,
)
from lambdanet.training.run.step import (
    RecipeOptimizer,
    build_train_step,
    rematerialize,
)


def build_model_for_training(recipe: Recipe) -> keras.Model:
    """Returns the recipe's model, for images of any size where training has another one than evaluation.

    Raises:
      InputError: as `build_model`, or weights of the model depend on the size, as tables of global scope do.
    """
    model = build_model(recipe)
    if recipe.size_in_training == recipe.input_size:
        return model
    other = build_model(dataclasses.replace(recipe, input_size=recipe.size_in_training))
    if [weight.shape for weight in model.weights] != [
        weight.shape for weight in other.weights
    ]:
        accepted = f"0 for {recipe.model}, which has weights that depend on the size"
        raise invalid("training_size", accepted, recipe.training_size)
    return build_model(recipe, any_size=True)


def build_model(recipe: Recipe, any_size: bool = False) -> keras.Model:
    """Returns the recipe's model with fresh weights, for images of its `input_size` or of any size.

    Raises:
      InputError: there is no such model, or it does not take these `model_options`.
    """
    task = task_of(recipe)
    arguments: dict[str, Any] = {
        "num_classes": recipe.num_classes,
        "input_size": None if any_size or task.any_size else recipe.input_size,
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
        own = "backbone", "features_only", "layer_name", "weights"
        if key in arguments or key in own:
            raise invalid("model_options", "options of the model's layers", key)
    dtype = recipe.compute_dtype
    with compat.dtype_policy(f"mixed_{dtype}" if recipe.mixed_precision else dtype):
        return task.build({**arguments, **recipe.model_options})


def _kernel_regularizer(recipe: Recipe) -> keras.regularizers.Regularizer | None:
    if not recipe.weight_decay or recipe.decays_in_steps:
        return None
    return keras.regularizers.L2(recipe.weight_decay / 2)


def build_schedule(
    recipe: Recipe, steps_per_epoch: int, first: int = 0
) -> "WarmupSchedule":
    """Returns the learning rate of the recipe at each step; `first` is the position of step 0."""
    return WarmupSchedule(
        recipe.learning_rate,
        total_steps=recipe.epochs * steps_per_epoch,
        warmup_steps=round(recipe.warmup_epochs * steps_per_epoch),
        shape=recipe.schedule,
        floor=recipe.cosine_floor,
        decay_rate=recipe.decay_rate,
        decay_steps=recipe.decay_epochs * steps_per_epoch,
        first=first,
    )


def build_optimizer(
    recipe: Recipe, weights: Sequence[Any], steps_per_epoch: int, first: int = 0
) -> keras.optimizers.Optimizer:
    """Returns the recipe's optimizer, with its learning rate schedule, clipping, decay and loss scaling.

    Its `averages` are the moving averages of all weights, batch statistics too, where the recipe has
    `ema_decay`. They start at the weights, and `move_averages` moves them.

    Args:
      recipe: the recipe.
      weights: the weights of the model; it is built for those that are trainable.
      steps_per_epoch: the steps per epoch.
      first: the position of step 0, as from `DataRecord.place`.

    Raises:
      InputError: it does not take these `optimizer_options`.
    """
    kind = class_of(recipe)
    # A file of Keras has `__class__`, and so is loaded where step.py is not.
    own = {"recipe": recipe, "__class__": kind}
    optimizer_class = type(kind.__name__, (RecipeOptimizer, kind), own)
    arguments: dict[str, Any] = {
        "learning_rate": build_schedule(recipe, steps_per_epoch, first),
        # In the paths of variables, where Keras would count its optimizers.
        "name": recipe.optimizer,
        "ema_momentum": recipe.ema_decay,
        **recipe.optimizer_options,
    }
    for name in {"momentum", "beta_1"} & parameters_of(kind).keys():
        arguments[name] = recipe.momentum
    if recipe.decays_in_steps:
        arguments["weight_decay"] = recipe.weight_decay
    if recipe.clip_norm:
        arguments["global_clipnorm"] = recipe.clip_norm
    try:
        optimizer = optimizer_class(**arguments)
        if recipe.mixed_precision == "float16":
            optimizer = LossScaleOptimizer(optimizer, name="loss_scale")
        optimizer.build([weight for weight in weights if weight.trainable])
    except (TypeError, ValueError) as error:
        accepted = f"options of {kind.__name__}"
        options = recipe.optimizer_options
        raise invalid("optimizer_options", accepted, options, one_line(error)) from None
    optimizer.averages = []
    if recipe.ema_decay:
        optimizer.averages = optimizer.add_optimizer_variables(weights, "average")
        for average, weight in zip(optimizer.averages, weights, strict=True):
            average.assign(keras.ops.copy(weight))
    return optimizer


def compile_model(
    recipe: Recipe,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    steps_per_execution: int = 1,
) -> None:
    """Compiles a model for `fit` with the loss and the metrics of the recipe's task.

    The compiled function makes `steps_per_execution` training steps per call.
    """
    task = task_of(recipe)
    model.compile(
        optimizer=optimizer,
        loss=task.loss(),
        weighted_metrics=task.metrics(),  # the padding of evaluation batches has weight 0
        steps_per_execution=steps_per_execution,
    )
    create_metrics(model, task.first_label())
    is_partly_cast = recipe.mixed_precision and (recipe.lora_rank or recipe.freeze)
    if recipe.remat and is_partly_cast and K.ENGINE == "tensorflow":
        accepted = "false on TensorFlow with frozen weights in mixed_precision"
        raise invalid("remat", accepted, True)
    if recipe.remat:
        model.call = rematerialize(model)
    model.train_step = build_train_step(model, recipe.accumulate_steps)


def create_metrics(model: keras.Model, labels: np.ndarray) -> None:
    """Creates the variables of a compiled model's metrics for labels of an image, in place of its first step.

    Otherwise `fit` takes a batch of every dataset first (Keras 3.15), and with a strategy of TensorFlow at
    every evaluation one that is not there.
    """
    logits = np.zeros([side or 1 for side in model.output_shape], np.float32)
    for part in (model._compile_metrics, model._compile_loss):
        part.build(labels, logits)
    model._maybe_symbolic_build = lambda *args, **kwargs: None


@keras.saving.register_keras_serializable("lambdanet")
@dataclasses.dataclass(eq=False)
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly from 0 to its peak and then follows a shape.

        step < warmup_steps:  peak * step / warmup_steps
        constant:             peak
        cosine:               peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)
        exponential:          peak * decay_rate ** floor((step - warmup_steps) / decay_steps)

    with progress = (step - warmup_steps) / (total_steps - warmup_steps). `InputError` for an unknown shape.

    Example:
      >>> schedule = WarmupSchedule(0.1, total_steps=100, warmup_steps=10)
      >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 55, 100)]
      [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    peak: float  # the largest learning rate
    total_steps: int  # of the whole run, after which the rate is constant
    warmup_steps: int = 0  # of the linear rise, from 0 (none) to `total_steps`
    shape: str = "cosine"  # a name in `SCHEDULES`
    floor: float = 0.0  # the end of the cosine, as a fraction of the peak
    decay_rate: float = 1.0  # the factor per stair of the exponential
    decay_steps: float = 1.0  # the steps per stair, not necessarily an integer
    first: int = 0  # the position of step 0, as from `DataRecord.place`

    def __post_init__(self) -> None:
        check_known("schedule", self.shape, SCHEDULES)

    def __call__(self, step: Tensor | int) -> Tensor:
        step = K.cast(step, "float32") + self.first
        step = K.minimum(step, float(self.total_steps))
        rise = step / max(self.warmup_steps, 1)
        after = K.maximum(step - self.warmup_steps, 0.0)
        factor = SCHEDULES[self.shape](self, after)
        return self.peak * K.where(step < self.warmup_steps, rise, factor)

    def get_config(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def constant(schedule: WarmupSchedule, after: Tensor) -> Tensor:
    """Returns the factor on the peak, `after` steps after the warm-up: 1."""
    return K.ones_like(after)


def cosine(schedule: WarmupSchedule, after: Tensor) -> Tensor:
    """Returns the factor on the peak, which falls to `floor` along half a cosine."""
    progress = after / max(schedule.total_steps - schedule.warmup_steps, 1)
    return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + K.cos(math.pi * progress))


def exponential(schedule: WarmupSchedule, after: Tensor) -> Tensor:
    """Returns the factor on the peak, which falls by `decay_rate` every `decay_steps` steps."""
    return schedule.decay_rate ** K.floor(after / schedule.decay_steps)


SCHEDULES = {"constant": constant, "cosine": cosine, "exponential": exponential}
