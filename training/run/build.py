# SPDX-License-Identifier: Apache-2.0
"""The model, the optimizer, the loss and the learning rate of a recipe.

In this order: what a recipe builds; its learning rate at each step (`WarmupSchedule`); its losses and its
accuracy; the layers that it freezes.
"""

import dataclasses
import math
import pkgutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import Tensor, compat, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import LOSSES, OPTIMIZERS, SCHEDULES
from lambdanet.errors import check_known, invalid
from lambdanet.models import zoo
from lambdanet.training.run import optimizers
from lambdanet.training.run.train_step import (
    accumulate_gradients,
    average_weights,
    rematerialize,
)


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
        if key in arguments or key in ("features_only", "layer_name", "weights"):
            raise invalid("model_options", "options of the model's layers", key)
    with compat.dtype_policy("mixed_bfloat16" if recipe.mixed_precision else "float32"):
        return zoo.create_model(recipe.model, **{**arguments, **recipe.model_options})


def _kernel_regularizer(recipe: Recipe) -> keras.regularizers.Regularizer | None:
    if not recipe.weight_decay or recipe.decays_in_steps:
        return None
    return keras.regularizers.L2(recipe.weight_decay / 2)


def build_schedule(recipe: Recipe, steps_per_epoch: int) -> "WarmupSchedule":
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
    if not optimizer.built:
        optimizer.build(model.weights)
    if optimizer.averages:
        model.train_step = average_weights(model)


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
    first: int = 0  # the place of step 0, as from `DataRecord.position`

    def __post_init__(self) -> None:
        check_known("schedule", self.shape, SCHEDULES)

    def __call__(self, step: Tensor | int) -> Tensor:
        step = K.cast(step, "float32") + self.first
        step = K.minimum(step, float(self.total_steps))
        rise = step / max(self.warmup_steps, 1)
        after = K.maximum(step - self.warmup_steps, 0.0)
        factor = pkgutil.resolve_name(SCHEDULES[self.shape])(self, after)
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


class _ClassLoss(keras.losses.Loss):
    """A loss of logits with label smoothing and class weights."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] = (),
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.label_smoothing = label_smoothing
        self.class_weights = tuple(class_weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss [b] of labels [b] or [b, 1], or of distributions, and logits [b, num_classes]."""
        labels = _distributions(y_true, y_pred.shape[-1])
        loss = self.compare(labels, K.cast(y_pred, "float32"))
        if not self.class_weights:
            return loss
        return loss * K.sum(
            labels * K.convert_to_tensor(self.class_weights, "float32"), axis=-1
        )

    def compare(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns the loss [b] of labels and logits, both float32 [b, num_classes]."""
        raise NotImplementedError

    def smooth_labels(self, labels: Tensor) -> Tensor:
        """Returns labels [b, num_classes] with a part of each spread over all classes."""
        return (
            labels * (1 - self.label_smoothing)
            + self.label_smoothing / labels.shape[-1]
        )

    def get_config(self) -> dict[str, Any]:
        own = {
            "label_smoothing": self.label_smoothing,
            "class_weights": self.class_weights,
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("lambdanet")
class SmoothedCrossEntropy(_ClassLoss):
    """Softmax cross entropy of logits, with label smoothing.

    The target of class c is (1 - s) [c = label] + s / num_classes, where s is the label smoothing. The loss
    of an example is multiplied by the weight of its class, or for a distribution, by the mean weight.

    Args:
      label_smoothing: s, at least 0 and below 1.
      class_weights: the weight of each class; empty: 1.

    Example:
      >>> float(SmoothedCrossEntropy(0.1)(tf.constant([1]), tf.constant([[0.0, 0.0]])))
      0.6931...
    """

    def compare(self, labels: Tensor, logits: Tensor) -> Tensor:
        return K.softmax_cross_entropy(self.smooth_labels(labels), logits)


@keras.saving.register_keras_serializable("lambdanet")
class SmoothedBinaryCrossEntropy(_ClassLoss):
    """The mean over the classes of the binary cross entropy of logits (Wightman et al. 2021, section 3).

    Scores each class independently, so a mixed image can contain both of its classes. Targets and weights are
    as in `SmoothedCrossEntropy`.

    Args:
      label_smoothing: s, at least 0 and below 1.
      class_weights: the weight of each class; empty: 1.
      threshold: labels above it become 1 and others 0, as with timm's `--bce-target-thresh`, but before the
        smoothing, which timm's removes again; 0: they stay.

    Example:
      >>> float(SmoothedBinaryCrossEntropy()(tf.constant([1]), tf.constant([[0.0, 0.0]])))
      0.6931...
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] = (),
        threshold: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, class_weights, **kwargs)
        self.threshold = threshold

    def compare(self, labels: Tensor, logits: Tensor) -> Tensor:
        if self.threshold:
            labels = K.cast(labels > self.threshold, "float32")
        return keras.losses.binary_crossentropy(
            self.smooth_labels(labels), logits, from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}


@keras.saving.register_keras_serializable("lambdanet")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The fraction of images whose largest logit belongs to the label, or to its most probable class."""

    def __init__(self, name: str = "accuracy", dtype: object = None):
        super().__init__(_is_correct, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _is_correct(y_true: Tensor, y_pred: Tensor) -> Tensor:
    targets = _distributions(y_true, y_pred.shape[-1])
    # `==` forgets the rank
    is_equal = keras.ops.equal(K.argmax(targets, axis=-1), K.argmax(y_pred, axis=-1))
    return K.cast(is_equal, "float32")


def _distributions(labels: Tensor, num_classes: int) -> Tensor:
    """Returns labels [b] or [b, 1] as distributions [b, num_classes]; distributions stay unchanged."""
    if len(labels.shape) == 2 and labels.shape[-1] == num_classes:
        return K.cast(labels, "float32")
    return K.one_hot(K.reshape(K.cast(labels, "int32"), [-1]), num_classes)
