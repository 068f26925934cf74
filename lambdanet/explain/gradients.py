# SPDX-License-Identifier: Apache-2.0
"""Gradients with respect to a tensor, on every engine."""

from collections.abc import Callable
from typing import Any, TypeAlias

from lambdanet import backend as K

Function: TypeAlias = Callable[[Any], Any]


def _by_tensorflow(function: Function) -> Function:
    import tensorflow as tf

    def compute(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return compute


def _by_jax(function: Function) -> Function:
    import jax

    return jax.jit(jax.grad(lambda x: function(x).sum()))


def _by_torch(function: Function) -> Function:
    import torch

    def compute(x: Any) -> Any:
        x = x.detach().requires_grad_(True)
        (slopes,) = torch.autograd.grad(function(x).sum(), x)
        return slopes

    return compute


_ENGINES = {"tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch}


def gradient(function: Function) -> Function:
    """Returns the function of the gradient of another one, by its argument.

    Args:
      function: takes and returns a tensor of the engine; the gradient is that of the sum of what it returns.
    """
    return _ENGINES[K.ENGINE](function)
