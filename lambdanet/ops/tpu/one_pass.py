# SPDX-License-Identifier: Apache-2.0
"""Batch normalization and channel gates, fused with the reductions before and after them."""

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import at_least_float32, sizes


def scale_channels(x: Tensor, gate: Tensor) -> Tensor:
    """Returns `x * gate`, computed in float32 so that its gradient can join the sums of `normalize`."""
    return K.cast(at_least_float32(x) * at_least_float32(gate), x.dtype)


def normalize(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int = 1
) -> tuple[Tensor, ...]:
    """Normalizes over batch and maps, with one pass over the input for all sums, and one for all gradients.

    Every sum is over a map first, so that the compiler can compute all of them together, by the operation
    that writes or reads the map. So groups divide these sums alone, and x keeps its shape.

    Args:
      x: [b, h, w, c].
      gamma: [c], the scale of the result; its type is the type of the arithmetic.
      beta: [c], the offset of the result.
      epsilon: added to the variance.
      groups: g, the number of parts of the batch that are normalized each by its own statistics.

    Returns:
      the normalized x, [b, h, w, c]; its mean over each map, [b, c]; mean and variance of x, [c] each, the
      means over the groups, which pass no gradient on.
    """
    b, h, w, c = sizes(x)
    pixels = K.cast(h * w, gamma.dtype)
    size = K.cast(b, gamma.dtype) / groups * pixels

    def split(sums: Tensor) -> Tensor:  # [b, c] -> [g, b / g, c]
        return K.reshape(sums, [groups, -1, c])

    def by_example(values: Tensor) -> Tensor:  # [g, c] -> [b, c]
        if groups == 1:
            return values  # [1, c]
        return K.reshape(
            K.broadcast_to(values[:, K.newaxis], [groups, b // groups, c]), [b, c]
        )

    def by_pixel(values: Tensor) -> Tensor:  # [g, c] -> [b, 1, 1, c]
        return by_example(values)[:, K.newaxis, K.newaxis]

    @K.custom_gradient
    def normalized(
        x: Tensor, gamma: Tensor, beta: Tensor
    ) -> tuple[tuple[Tensor, ...], K.Gradient]:
        wide = K.cast(x, gamma.dtype)
        means = K.mean(wide, [1, 2])
        squares = K.mean(K.square(wide), [1, 2])
        mean = K.mean(split(means), 1)  # [g, c]
        variance = K.maximum(K.mean(split(squares), 1) - K.square(mean), 0)
        precision = K.rsqrt(variance + epsilon)
        scale = gamma * precision
        offset = beta - mean * scale

        def grad(
            upstream: Tensor,
            upstream_means: Tensor,
            _mean: Tensor,
            _variance: Tensor,
        ) -> tuple[Tensor, ...]:
            upstream, upstream_means = (
                K.cast(g, gamma.dtype) for g in (upstream, upstream_means)
            )
            wide = K.cast(x, gamma.dtype)
            sums = K.sum(upstream, [1, 2]) + upstream_means
            products = K.sum(upstream * wide, [1, 2]) + upstream_means * means
            by_beta = K.sum(split(sums), 1)  # [g, c]
            by_gamma = (K.sum(split(products), 1) - mean * by_beta) * precision
            by_x = -scale * precision * by_gamma / size
            by_map = by_example(scale) * upstream_means / pixels
            by_map = by_map - by_example(scale * by_beta / size + by_x * mean)
            gradient = (
                upstream * by_pixel(scale)
                + wide * by_pixel(by_x)
                + by_map[:, K.newaxis, K.newaxis]
            )
            return K.cast(gradient, x.dtype), K.sum(by_gamma, 0), K.sum(by_beta, 0)

        outputs = K.cast(wide * by_pixel(scale) + by_pixel(offset), x.dtype)
        pooled = K.cast(means * by_example(scale) + by_example(offset), x.dtype)
        return (outputs, pooled, K.mean(mean, 0), K.mean(variance, 0)), grad

    return normalized(x, gamma, beta)
