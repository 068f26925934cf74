# SPDX-License-Identifier: Apache-2.0
"""Batch normalization and channel gates that share one pass over the input with the sums around them."""

from lambdanet import backend as K
from lambdanet.backend.tensors import at_least_float32, sizes


def scale_channels(x: K.Tensor, gate: K.Tensor) -> K.Tensor:
    """Returns `x * gate`, computed in float32 so that its gradient can join the sums of `normalize`."""
    return K.cast(at_least_float32(x) * at_least_float32(gate), x.dtype)


def normalize(x: K.Tensor, gamma: K.Tensor, beta: K.Tensor, epsilon: float) -> tuple[K.Tensor, ...]:
    """Normalizes over batch and maps, with one pass over the input for all sums, and one for all gradients.

    Every sum is over a map first, so that the compiler can compute all of them together.

    Args:
      x: [b, h, w, c].
      gamma: [c], the scale of the result; its type is the type of the arithmetic.
      beta: [c], the offset of the result.
      epsilon: added to the variance.

    Returns:
      the normalized x, [b, h, w, c]; its mean over each map, [b, c]; mean and variance of x, [c] each, which
      pass no gradient on.
    """
    b, h, w, _ = (K.cast(size, gamma.dtype) for size in sizes(x))

    @K.custom_gradient
    def normalized(x, gamma, beta):
        wide = K.cast(x, gamma.dtype)
        means = K.mean(wide, [1, 2])
        squares = K.mean(K.square(wide), [1, 2])
        mean = K.mean(means, 0)
        variance = K.maximum(K.mean(squares, 0) - K.square(mean), 0)
        precision = K.rsqrt(variance + epsilon)
        scale = gamma * precision
        offset = beta - mean * scale

        def grad(upstream, upstream_means, _mean, _variance):
            upstream, upstream_means = (K.cast(g, gamma.dtype) for g in (upstream, upstream_means))
            wide = K.cast(x, gamma.dtype)
            sums = K.sum(upstream, [1, 2]) + upstream_means
            products = K.sum(upstream * wide, [1, 2]) + upstream_means * means
            by_beta = K.sum(sums, 0)
            by_gamma = (K.sum(products, 0) - mean * by_beta) * precision
            by_x = -scale * precision * by_gamma / (b * h * w)
            by_map = scale * upstream_means / (h * w) - scale * by_beta / (b * h * w) - by_x * mean
            gradient = upstream * scale + wide * by_x + by_map[:, K.newaxis, K.newaxis]
            return K.cast(gradient, x.dtype), by_gamma, by_beta

        outputs, pooled = (K.cast(y * scale + offset, x.dtype) for y in (wide, means))
        return (outputs, pooled, mean, variance), grad

    return normalized(x, gamma, beta)
