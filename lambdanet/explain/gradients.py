# SPDX-License-Identifier: Apache-2.0
"""Gradients with respect to a tensor, on every engine."""

from collections.abc import Callable
from typing import Any

from lambdanet import backend as K


def _by_tensorflow(function: Callable[[Any], Any], x: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def _by_jax(function: Callable[[Any], Any], x: Any) -> Any:
    import jax

    return jax.grad(lambda x: function(x).sum())(x)


def _by_torch(function: Callable[[Any], Any], x: Any) -> Any:
    import torch

    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    return gradient


_ENGINES = {"tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch}


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Returns the gradient of the sum of a function of a tensor, at that tensor and of its shape.

    Args:
      function: takes and returns a tensor of the engine.
      x: the tensor.
    """
    return _ENGINES[K.ENGINE](function, x)
