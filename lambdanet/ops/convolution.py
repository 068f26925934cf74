# SPDX-License-Identifier: Apache-2.0
"""The lambda convolution (Figure 5), as a full and as a depthwise convolution."""

from lambdanet import backend as K
from lambdanet.backend import tensors
from lambdanet.errors import invalid
from lambdanet.ops.position_term import PositionTerm


def convolve(term: PositionTerm) -> K.Tensor:
    """Applies the position lambdas by a convolution: v is one more batch axis, and the table the kernel.

    The result is [b, *query_size, h, v], without the content of the term.
    """
    b, *query_size, h, k = tensors.sizes(term.queries)
    _, *context_size, v, u = tensors.sizes(term.values)
    rank, n = len(query_size), tensors.product(query_size)
    images = K.transpose(term.values, [0, rank + 1, *range(1, rank + 1), rank + 2])
    images = K.reshape(images, [b * v, *context_size, u])
    kernel = K.einsum("...ku->...uk", term.table)
    lambdas = K.reshape(_correlate(K.conv, images, kernel, term), [b, v, n, k])
    outputs = K.einsum("bnhk,bvnk->bnhv", K.reshape(term.queries, [b, n, h, k]), lambdas)
    return K.reshape(outputs, [b, *query_size, h, v])


def convolve_depthwise(term: PositionTerm) -> K.Tensor:
    """Does the same by a depthwise convolution with channel multiplier k, along one or two axes.

    Raises:
      InputError: for three axes.
    """
    b, *query_size, h, k = tensors.sizes(term.queries)
    _, *context_size, v, u = tensors.sizes(term.values)
    if len(query_size) > 2:
        raise invalid("the spatial axes of depthwise_conv", "one or two", len(query_size))
    n = tensors.product(query_size)
    images = K.reshape(term.values, [b, *context_size, v * u])
    kernel = K.einsum("...ku->...uk", term.table)[..., K.newaxis, :, :]  # [r, ..., 1, u, k]
    kernel = K.reshape(K.repeat(kernel, v, axis=-3), [*term.table.shape[:-2], v * u, k])
    lambdas = K.reshape(_correlate(_depthwise, images, kernel, term), [b, n, v, u, k])
    lambdas = K.sum(lambdas, axis=3)
    outputs = K.einsum("bnhk,bnvk->bnhv", K.reshape(term.queries, [b, n, h, k]), lambdas)
    return K.reshape(outputs, [b, *query_size, h, v])


def _depthwise(images, kernel, strides, padding, dilations):
    """`K.depthwise_conv` along one or two axes."""
    if len(strides) == 1:
        images, kernel = images[:, K.newaxis], kernel[K.newaxis]
        strides, dilations = strides * 2, [1, *dilations]
        return K.depthwise_conv(images, kernel, [1, *strides, 1], padding, dilations=dilations)[:, 0]
    return K.depthwise_conv(images, kernel, [1, *strides, 1], padding, dilations=dilations)


def _correlate(convolution, images, kernel, term):
    """Runs a convolution so that output i is centered on position `strides * i`, for every query."""
    strides, dilation, rank = term.geometry.strides, term.geometry.dilation, len(term.query_size)
    for axis, n in enumerate(term.query_size, start=1):
        halo = kernel.shape[axis - 1] // 2 * dilation
        images = tensors.pad(images, axis, halo, (n - 1) * strides + 1 + halo - tensors.sizes(images)[axis])
    # TensorFlow has no kernels for strides and dilation together.
    slices = strides > 1 and dilation > 1
    steps = [1 if slices else strides] * rank
    outputs = convolution(images, kernel, strides=steps, padding="VALID", dilations=[dilation] * rank)
    return outputs[(slice(None), *[slice(None, None, strides)] * rank)] if slices else outputs
