# SPDX-License-Identifier: Apache-2.0
"""The lambda convolution (Figure 5), as a full and as a depthwise convolution."""

import dataclasses
from collections.abc import Callable

from lambdanet import backend as K
from lambdanet.backend import Tensor, tensors
from lambdanet.backend.device import Device, Speed
from lambdanet.core.errors import invalid
from lambdanet.ops import content_lambdas
from lambdanet.ops.position_term import Form, Geometry, PositionTerm, Sizes


@dataclasses.dataclass(frozen=True)
class Convolution(Form):
    """Computes the lambdas by a convolution, with the table as its kernel, and then the outputs.

    Attributes:
      depthwise: whether v is among the channels, with a channel multiplier of k, instead of one more batch
        axis. Depthwise convolutions have one or two axes.
    """

    depthwise: bool = False
    has_fast_gradient = False  # TensorFlow's takes five times as long as a product's

    def seconds(self, sizes: Sizes, speed: Speed) -> float:
        lambdas = tensors.product([sizes.b, *sizes.query_size, sizes.k, sizes.v])
        arithmetic = tensors.product(sizes.scope) / speed.convolution_rate
        return lambdas * (arithmetic + sizes.bytes / speed.bandwidth)

    def memory(self, sizes: Sizes, device: Device) -> float:
        """Counts the lambdas and their transposition."""
        return (
            2
            * tensors.product([sizes.b, *sizes.query_size, sizes.k, sizes.v])
            * sizes.bytes
        )

    def compute(self, term: PositionTerm, device: Device) -> Tensor:
        b, *query_size, h, k = tensors.sizes(term.queries)
        lambdas = _depthwise_lambdas(term) if self.depthwise else _lambdas(term)
        queries = K.reshape(term.queries, [b, tensors.product(query_size), h, k])
        return K.reshape(
            K.matmul(queries, lambdas, transpose_b=True),
            [b, *query_size, h, term.values.shape[-2]],
        )


def candidates(sizes: Sizes) -> list[Form]:
    """Returns the convolution for images of known size, where it was measured."""
    measured = (
        sizes.known
        and len(sizes.scope) == 2
        and sizes.u == 1
        and sizes.geometry == Geometry()
    )
    return [Convolution()] if measured else []


def _lambdas(term: PositionTerm) -> Tensor:
    """The lambdas [b, n, v, k] by a convolution of b * v images with u channels."""
    b, *_, k = tensors.sizes(term.queries)
    _, *context_size, v, u = tensors.sizes(term.values)
    images = K.transpose(content_lambdas.flatten_map(term.values), [0, 2, 1, 3])
    kernel = K.einsum("...ku->...uk", term.table)
    lambdas = _correlate(
        K.conv, K.reshape(images, [b * v, *context_size, u]), kernel, term
    )
    lambdas = K.reshape(lambdas, [b, v, tensors.product(term.query_size), k])
    return K.transpose(lambdas, [0, 2, 1, 3])


def _depthwise_lambdas(term: PositionTerm) -> Tensor:
    """The lambdas [b, n, v, k] by a depthwise convolution along one or two axes."""
    b, *_, k = tensors.sizes(term.queries)
    _, *context_size, v, u = tensors.sizes(term.values)
    if len(context_size) > 2:
        raise invalid(
            "the spatial axes of depthwise_conv", "one or two", len(context_size)
        )
    # [r, ..., u, k]
    kernel = K.einsum("...ku->...uk", term.table)
    kernel = K.reshape(kernel, [*term.table.shape[:-2], u * k])
    kernel = K.tile(kernel, [*[1] * len(term.scope), v])
    kernel = K.reshape(kernel, [*term.table.shape[:-2], v * u, k])
    images = K.reshape(term.values, [b, *context_size, v * u])
    lambdas = _correlate(_depthwise, images, kernel, term)
    n = tensors.product(term.query_size)
    return K.reshape(K.sum(K.reshape(lambdas, [b, n * v, u, k]), axis=2), [b, n, v, k])


def _depthwise(
    images: Tensor,
    kernel: Tensor,
    strides: list[int],
    padding: str,
    dilations: list[int],
) -> Tensor:
    """`K.depthwise_conv` along one or two axes."""
    if len(strides) == 1:
        rows = images[:, K.newaxis]
        outputs = _depthwise(
            rows, kernel[K.newaxis], strides * 2, padding, [1, *dilations]
        )
        return outputs[:, 0]
    return K.depthwise_conv(
        images, kernel, [1, *strides, 1], padding, dilations=dilations
    )


def _correlate(
    convolution: Callable[..., Tensor],
    images: Tensor,
    kernel: Tensor,
    term: PositionTerm,
) -> Tensor:
    """Runs a convolution so that output i is centered on position `strides * i`, for every query."""
    axes = term.geometry.along(len(term.query_size))
    for number, (n, axis) in enumerate(zip(term.query_size, axes, strict=True)):
        halo = term.scope[number] // 2 * axis.dilation
        images = tensors.pad(
            images,
            number + 1,
            halo,
            (n - 1) * axis.query_strides + 1 + halo - tensors.sizes(images)[number + 1],
        )
    strides = [axis.query_strides for axis in axes]
    dilations = [axis.dilation for axis in axes]
    # TensorFlow has no kernels for strides and dilation together, nor depthwise ones for different strides.
    slices = max(strides) > 1 and (max(dilations) > 1 or len(set(strides)) > 1)
    outputs = convolution(
        images,
        kernel,
        strides=[1] * len(axes) if slices else strides,
        padding="VALID",
        dilations=dilations,
    )
    if not slices:
        return outputs
    every = [slice(None, None, step) for step in strides]
    return outputs[(slice(None), *every)]
