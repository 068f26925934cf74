# SPDX-License-Identifier: Apache-2.0
"""The optimizers of recipes: tf_keras's and LAMB, with clipping and learning rates per weight."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.models.layer_builder import CLASSIFIER

# Gradients and weights of a layer -> the gradients to apply.
Clip = Callable[[K.Tensor, Any], K.Tensor]
# The weights in the order of the network -> the factor on the learning rate of each.
RateFactors = Callable[[Sequence[Any]], list[float]]


@keras.saving.register_keras_serializable("lambdanet")
class LAMB(keras.optimizers.Adam):
    """Adam with steps in proportion to the weights of a layer: LAMB (You et al. 2020, algorithm 2).

        update = m / (sqrt(v) + epsilon) + weight_decay * w
        w = w - learning_rate * (|w| / |update|) * update

    with the bias-corrected moments m and v of Adam. Weights that are excluded from decay take Adam's step.
    Model Garden's class is an optimizer of the old kind, which has no averages of the weights.

    Args:
      weight_decay: the decay, in the update.
      epsilon: added to sqrt(v), default 1e-6 as in timm.
      **kwargs: arguments of `keras.optimizers.Adam`.

    Example:
      >>> optimizer = LAMB(learning_rate=5e-3, weight_decay=0.02)
    """

    def __init__(self, weight_decay: float = 0.0, epsilon: float = 1e-6, name: str = "LAMB", **kwargs: Any):
        super().__init__(weight_decay=weight_decay, epsilon=epsilon, name=name, **kwargs)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Does nothing: the decay is in the update."""

    def update_step(self, gradient: K.Tensor, variable: Any) -> None:
        index, step = self._index_dict[self._var_key(variable)], K.cast(self.iterations + 1, variable.dtype)
        m, v = self._momentums[index], self._velocities[index]
        m.assign_add((gradient - m) * (1 - self.beta_1))
        v.assign_add((K.square(gradient) - v) * (1 - self.beta_2))
        update = m / (1 - self.beta_1**step) / (K.sqrt(v / (1 - self.beta_2**step)) + self.epsilon)
        if self._use_weight_decay(variable):
            update += (self.weight_decay or 0.0) * variable
            sizes = norm(variable), norm(update)
            update *= K.where(sizes[0] * sizes[1] > 0, K.divide_no_nan(*sizes), 1.0)
        variable.assign_sub(K.cast(self.learning_rate, variable.dtype) * update)


def with_options(kind: type[keras.optimizers.Optimizer]) -> type[keras.optimizers.Optimizer]:
    """Returns a class of optimizer of tf_keras with three more arguments.

    Only kernels are decayed: no biases, no scales and shifts of normalizations, no tables of positions.

    Args:
      kind: the class. Its new arguments are `clip`, applied to the gradients of all devices together before
        `global_clipnorm`, and `rate_factors`, which multiply the learning rate.
    """

    class WithOptions(kind):
        _first_step = 0  # of the variable that is updated

        def __init__(
            self, *args: Any, clip: Clip | None = None, rate_factors: RateFactors | None = None, **kwargs: Any
        ):
            super().__init__(*args, **kwargs)
            self._clip, self._rate_factors = clip, rate_factors
            self._factors: Callable[[str], float] = lambda key: 1.0  # a dict would be in checkpoints
            self._factor = 1.0  # of the variable that is updated
            self._first_steps: Callable[..., int] = lambda key, default: default

        def build(self, var_list: Sequence[Any]) -> None:
            if not getattr(self, "_built", False):
                self.exclude_from_weight_decay([v for v in var_list if not is_kernel(v)])
                if self._rate_factors:
                    factors = self._rate_factors(var_list)
                    self._factors = dict(zip(map(self._var_key, var_list), factors, strict=True)).__getitem__
            super().build(var_list)

        def count_from(self, step: int, variables: Sequence[Any]) -> None:
            """Counts the steps of variables that were frozen from this one, in which their moments begin."""
            self._first_steps = dict.fromkeys(map(self._var_key, variables), step).get

        @property
        def iterations(self) -> Any:
            steps = super().iterations
            return steps - self._first_step if self._first_step else steps

        @property
        def learning_rate(self) -> Any:
            rate = super().learning_rate
            return rate if self._factor == 1.0 else rate * self._factor

        @contextlib.contextmanager
        def _rate_of(self, variable: Any) -> Iterator[None]:
            key = self._var_key(variable)
            self._factor, self._first_step = self._factors(key), self._first_steps(key, 0)
            try:
                yield
            finally:
                self._factor, self._first_step = 1.0, 0

        def aggregate_gradients(self, grads_and_vars: Any) -> Any:
            pairs = super().aggregate_gradients(grads_and_vars)
            return [(self._clip(g, v) if self._clip and g is not None else g, v) for g, v in pairs]

        def update_step(self, gradient: K.Tensor, variable: Any) -> None:
            with self._rate_of(variable):
                super().update_step(gradient, variable)

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            for variable in variables:
                with self._rate_of(variable):
                    super()._apply_weight_decay([variable])

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
      >>> bias = tf.Variable([6.0, 8.0], name="stem/bias")
      >>> adaptive_clip(0.01)(tf.constant([3.0, 4.0]), bias).numpy()
      array([0.06, 0.08], dtype=float32)
    """

    def clip(gradient: K.Tensor, variable: Any) -> K.Tensor:
        if _layer(variable).startswith(CLASSIFIER):
            return gradient
        axes = _unit_axes(variable)
        largest = limit * K.maximum(norm(variable, axes), epsilon)
        return gradient * K.minimum(1.0, largest / K.maximum(norm(gradient, axes), 1e-6))

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
        return [h * layer_decay ** depths[_layer(v)] for h, v in zip(heads, variables, strict=True)]

    return factors


def norm(x: Any, axes: tuple[int, ...] | None = None) -> K.Tensor:
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
    name, rank = compat.variable_name(variable), len(variable.shape)
    is_vector = sum(size > 1 for size in variable.shape) <= 1
    if name.endswith("bias") or (is_vector and not is_kernel(variable)):
        return tuple(range(rank))
    return tuple(range(rank - (2 if name.endswith("depthwise_kernel") else 1)))
