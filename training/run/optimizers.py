# SPDX-License-Identifier: Apache-2.0
"""The optimizers of recipes: Keras's, LAMB, loss scaling, adaptive clipping, and the rates of layers.

What they do in a step is in step.py.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor, compat, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.recipe_values import coerce
from lambdanet.core.errors import check_known
from lambdanet.models.layer_builder import CLASSIFIER


@keras.saving.register_keras_serializable("lambdanet")
class LAMB(keras.optimizers.Adam):
    """Adam with steps in proportion to the weights of a layer: LAMB (You et al. 2020, algorithm 2).

        update = m / (sqrt(v) + epsilon) + weight_decay * w
        w = w - learning_rate * (|w| / |update|) * update

    with the bias-corrected moments m and v of Adam. Weights that are no kernels take Adam's step.
    (`keras.optimizers.Lamb` of Keras 3.15 decays the weights outside of that ratio.)

    Args:
      weight_decay: the decay, in the update.
      epsilon: added to sqrt(v), default 1e-6 as in timm.
      **kwargs: arguments of `keras.optimizers.Adam`.

    Example:
      >>> optimizer = LAMB(learning_rate=5e-3, weight_decay=0.02)
    """

    def __init__(
        self,
        weight_decay: float = 0.0,
        epsilon: float = 1e-6,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        name: str = "LAMB",
        **kwargs: Any,
    ):
        super().__init__(
            weight_decay=weight_decay,
            epsilon=epsilon,
            beta_1=beta_1,
            beta_2=beta_2,
            name=name,
            **kwargs,
        )

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        step = K.cast(self.iterations + 1, variable.dtype)
        m = self._momentums[index]
        v = self._velocities[index]
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (K.square(gradient) - v) * (1 - self.beta_2))
        update = (
            m
            / (1 - self.beta_1**step)
            / (K.sqrt(v / (1 - self.beta_2**step)) + self.epsilon)
        )
        if is_kernel(self._trainable_variables[index]):
            update += (self.weight_decay or 0.0) * variable
            sizes = norm(variable), norm(update)
            update *= K.where(sizes[0] * sizes[1] > 0, K.divide_no_nan(*sizes), 1.0)
        self.assign_sub(variable, K.cast(learning_rate, variable.dtype) * update)


@keras.saving.register_keras_serializable("lambdanet")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's loss scaling for float16, whose `iterations` count all steps, as a run counts its batches.

    A step whose gradients are not finite is skipped: the `iterations` of `inner_optimizer` leave it out.
    """

    @property
    def iterations(self) -> Any:
        return self._iterations

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        super().apply(grads, trainable_variables)
        self._iterations.assign_add(1)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        weights, values = super().stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        values[0] += 1  # `_iterations`, the first of the variables
        return weights, values


# Those of Keras by their names in lower case.
OPTIMIZERS = {
    name.lower(): kind
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type) and "Optimizer" not in name
}
OPTIMIZERS["lamb"] = LAMB


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer within loss scaling, or without it the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def class_of(recipe: Recipe) -> type[keras.optimizers.Optimizer]:
    """Returns the class of a recipe's optimizer.

    Raises:
      InputError: it has no such option as in `optimizer_options`, or one of another type.
    """
    kind = OPTIMIZERS[recipe.optimizer]
    # Other fields of the recipe set what all of Keras's have.
    fields = parameters_of(keras.optimizers.SGD).keys() - {"nesterov"}
    fields |= {"beta_1", "adam_weight_decay"}
    accepted = parameters_of(kind)
    names = [name for name in accepted if name not in fields]
    for option, value in recipe.optimizer_options.items():
        check_known(f"option of optimizer {recipe.optimizer}", option, names)
        default = accepted[option].default
        if isinstance(default, bool | int | float):
            expected = bool if isinstance(default, bool) else float
            coerce(f"optimizer_options[{option!r}]", value, expected)
    return kind


def parameters_of(kind: type) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a class by name."""
    return dict(inspect.signature(kind.__init__).parameters)  # type: ignore[misc]


def adaptive_clip(gradient: Tensor, variable: Any, limit: float) -> Tensor:
    """Returns the gradient of a weight after adaptive clipping (AGC, Brock et al. 2021, equation 3).

        g = g * min(1, limit * max(|w|, 1e-3) / |g|)

    for the weights w and gradients g of each output channel, of a bias, a scale or a class token. The
    classifier is not clipped, as in the paper.

    Args:
      gradient: the gradient.
      variable: the weight.
      limit: the largest size of a gradient, relative to the size of the weights.

    Example:
      >>> bias = keras.Variable([6.0, 8.0], name="bias")
      >>> adaptive_clip(tf.constant([3.0, 4.0]), bias, limit=0.01).numpy()
      array([0.06, 0.08], dtype=float32)
    """
    if _layer(variable).startswith(CLASSIFIER):
        return gradient
    axes = _unit_axes(variable)
    largest = limit * K.maximum(norm(variable, axes), 1e-3)
    return gradient * K.minimum(1.0, largest / K.maximum(norm(gradient, axes), 1e-6))


def layer_rate_factors(
    variables: Sequence[Any], layer_decay: float, head: float
) -> list[float]:
    """Returns factors on learning rates that fall from the classifier to the stem by a factor per block.

    The stem, each block and the classifier are one layer each, in the order of the network (Clark et al.
    2020, section 3; timm's `--layer-decay`). Weights between the last block and the classifier belong to
    that block.

    Args:
      variables: the weights in the order of the network.
      layer_decay: the factor from one layer to the one before; 1: none.
      head: a further factor of the classifier.
    """
    groups = list(dict.fromkeys(map(_layer, variables)))
    begins = ["block" in group or group.startswith(CLASSIFIER) for group in groups]
    depths = {group: sum(begins[i + 1 :]) for i, group in enumerate(groups)}
    heads = [head if _layer(v).startswith(CLASSIFIER) else 1.0 for v in variables]
    return [
        h * layer_decay ** depths[_layer(v)]
        for h, v in zip(heads, variables, strict=True)
    ]


def norm(x: Any, axes: tuple[int, ...] | None = None) -> Tensor:
    """Returns the Euclidean norm over some axes, which stay with length 1, or over all."""
    return K.sqrt(K.sum(K.square(x), axis=axes, keepdims=axes is not None))


def is_kernel(variable: Any) -> bool:
    """Returns whether a variable is the kernel of a convolution or projection."""
    return "kernel" in compat.variable_name(variable).rpartition("/")[2]


def layer_group(name: str) -> str:
    """Returns the block in a name, or its part of the network: "c4_block2", "stem"."""
    return re.match(r"[a-z0-9_]*?block\d+[a-z]?|[a-z]*", name)[0]  # type: ignore[index]


def _layer(variable: Any) -> str:
    return layer_group(compat.variable_name(variable))


def _unit_axes(variable: Any) -> tuple[int, ...]:
    """Returns the axes of the weights of one output channel; a bias or a class token is one unit."""
    name = compat.variable_name(variable)
    rank = len(variable.shape)
    is_vector = sum(size > 1 for size in variable.shape) <= 1
    if name.endswith("bias") or (is_vector and not is_kernel(variable)):
        return tuple(range(rank))
    return tuple(range(rank - (2 if name.endswith("depthwise_kernel") else 1)))
