# SPDX-License-Identifier: Apache-2.0
"""The optimizers of recipes: Keras's and LAMB, with clipping and learning rates per weight."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor, compat, keras
from lambdanet.models.layer_builder import CLASSIFIER

# Gradients and weights of a layer -> the gradients to apply.
Clip = Callable[[Tensor, Any], Tensor]
# The weights in the order of the network -> the factor on the learning rate of each.
RateFactors = Callable[[Sequence[Any]], list[float]]


@keras.saving.register_keras_serializable("lambdanet")
class LAMB(keras.optimizers.Adam):
    """Adam with steps in proportion to the weights of a layer: LAMB (You et al. 2020, algorithm 2).

        update = m / (sqrt(v) + epsilon) + weight_decay * w
        w = w - learning_rate * (|w| / |update|) * update

    with the bias-corrected moments m and v of Adam. Weights that are excluded from decay take Adam's step.
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
        name: str = "LAMB",
        **kwargs: Any,
    ):
        super().__init__(
            weight_decay=weight_decay, epsilon=epsilon, name=name, **kwargs
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
        if self._use_weight_decay(variable):
            update += (self.weight_decay or 0.0) * variable
            sizes = norm(variable), norm(update)
            update *= K.where(sizes[0] * sizes[1] > 0, K.divide_no_nan(*sizes), 1.0)
        self.assign_sub(variable, K.cast(learning_rate, variable.dtype) * update)


def with_options(
    kind: type[keras.optimizers.Optimizer],
) -> type[keras.optimizers.Optimizer]:
    """Returns a class of optimizer with more arguments, for a run in which layers may be frozen.

    Only kernels are decayed: no biases, no scales and shifts of normalizations, no tables of positions.
    Gradients are clipped after the sum over devices. With `use_ema`, `averages` are the moving averages of
    all weights with which it is built, batch statistics too. They start at the weights, move by
    `move_averages` instead of in `apply`, and do not replace the weights at the end of `fit`, as Keras's do.

    Args:
      kind: the class. Its new arguments are `clip`, applied to the gradients of all devices together before
        `global_clipnorm`, and `rate_factors`, which multiply the learning rate.
    """

    class WithOptions(kind):
        def __init__(
            self,
            *args: Any,
            clip: Clip | None = None,
            rate_factors: RateFactors | None = None,
            use_ema: bool = False,
            **kwargs: Any,
        ):
            super().__init__(*args, **kwargs)
            self.averages: list[Any] = []
            self._keeps_averages = use_ema
            self._clip = clip
            self._rate_factors = rate_factors
            self._factors: Callable[[Any], float] = lambda key: 1.0

        def build(self, variables: Sequence[Any]) -> None:
            if self._keeps_averages:
                self.averages = self.add_optimizer_variables(variables, "average")
                for average, variable in zip(self.averages, variables, strict=True):
                    average.assign(keras.ops.copy(variable))
            variables = [v for v in variables if v.trainable]
            self.exclude_from_weight_decay([v for v in variables if not is_kernel(v)])
            if self._rate_factors:
                factors = self._rate_factors(variables)
                self._factors = dict(
                    zip(map(self._var_key, variables), factors, strict=True)
                ).__getitem__
            super().build(variables)

        def move_averages(self, variables: Sequence[Any]) -> None:
            """Moves the averages after step t, from 1, with the decay min(ema_momentum, (1 + t) / (10 + t)).

            With `ema_momentum` alone, those of a short run would be the initial weights.

            Args:
              variables: the weights, as for `build`.
            """
            step = K.cast(self.iterations, "float32")
            decay = K.minimum(self.ema_momentum, (1 + step) / (10 + step))
            for average, variable in zip(self.averages, variables, strict=True):
                average.assign(average + (1 - decay) * (variable - average))

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply(grads, trainable_variables or self._trainable_variables)

        def stateless_apply(
            self, optimizer_variables: Any, grads: Any, trainable_variables: Any
        ) -> Any:
            """Applies gradients on JAX, also where some of the variables are frozen."""
            # An assigned attribute would be tracked by Keras.
            attributes: dict[str, Any] = self.__dict__
            built_for = self._trainable_variables
            attributes["_trainable_variables"] = [v for v in built_for if v.trainable]
            try:
                return super().stateless_apply(
                    optimizer_variables, grads, trainable_variables
                )
            finally:
                attributes["_trainable_variables"] = built_for

        def _backend_apply_gradients(
            self, grads: Any, trainable_variables: Any
        ) -> None:
            # TensorFlow: Keras would clip before the sum
            if hasattr(kind, "_all_reduce_sum_gradients"):
                pairs = super()._all_reduce_sum_gradients(
                    zip(grads, trainable_variables, strict=True)
                )
                grads = [gradient for gradient, _ in pairs]
            if self._clip:
                grads = [
                    self._clip(g, v)
                    for g, v in zip(grads, trainable_variables, strict=True)
                ]
            super()._backend_apply_gradients(grads, trainable_variables)

        def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
            return grads_and_vars  # summed above

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            """Does nothing: `update_step` decays a variable at its own learning rate."""

        def update_step(
            self, gradient: Tensor, variable: Any, learning_rate: Any
        ) -> None:
            rate = learning_rate * self._factors(self._var_key(variable))
            if (
                self.weight_decay
                and not issubclass(kind, LAMB)
                and self._use_weight_decay(variable)
            ):
                self.assign_sub(
                    variable,
                    variable * K.cast(self.weight_decay * rate, variable.dtype),
                )
            super().update_step(gradient, variable, rate)

    return WithOptions


def adaptive_clip(limit: float, epsilon: float = 1e-3) -> Clip:
    """Returns adaptive gradient clipping (AGC, Brock et al. 2021, equation 3).

        g = g * min(1, limit * max(|w|, epsilon) / |g|)

    for the weights w and gradients g of each output channel, of a bias, a scale or a class token. The
    classifier is not clipped, as in the paper.

    Args:
      limit: the largest size of a gradient, relative to the size of the weights.
      epsilon: the least size of weights that counts.

    Example:
      >>> bias = keras.Variable([6.0, 8.0], name="bias")
      >>> adaptive_clip(0.01)(tf.constant([3.0, 4.0]), bias).numpy()
      array([0.06, 0.08], dtype=float32)
    """

    def clip(gradient: Tensor, variable: Any) -> Tensor:
        if _layer(variable).startswith(CLASSIFIER):
            return gradient
        axes = _unit_axes(variable)
        largest = limit * K.maximum(norm(variable, axes), epsilon)
        return gradient * K.minimum(
            1.0, largest / K.maximum(norm(gradient, axes), 1e-6)
        )

    return clip


def layer_rate_factors(layer_decay: float, head: float) -> RateFactors:
    """Returns learning rates that fall from the classifier to the stem by a factor per block.

    The stem, each block and the classifier are one layer each, in the order of the network (Clark et al.
    2020, section 3; timm's `--layer-decay`). Weights between the last block and the classifier belong to
    that block.

    Args:
      layer_decay: the factor from one layer to the one before; 1: none.
      head: a further factor of the classifier.
    """

    def factors(variables: Sequence[Any]) -> list[float]:
        groups = list(dict.fromkeys(map(_layer, variables)))
        begins = ["block" in group or group.startswith(CLASSIFIER) for group in groups]
        depths = {group: sum(begins[i + 1 :]) for i, group in enumerate(groups)}
        heads = [head if _layer(v).startswith(CLASSIFIER) else 1.0 for v in variables]
        return [
            h * layer_decay ** depths[_layer(v)]
            for h, v in zip(heads, variables, strict=True)
        ]

    return factors


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
