# SPDX-License-Identifier: Apache-2.0
"""The lambda convolution (Figure 5), as a full and as a depthwise convolution."""

import tensorflow as tf

from lambdanet import tensors
from lambdanet.errors import InputError


def _convolution(queries, values, table, strides, dilation):
    """The lambda convolution (Figure 5): the table is a kernel that treats v as one more batch axis."""
    b, *query_size, h, k = tensors.sizes(queries)
    _, *context_size, v, u = tensors.sizes(values)
    rank = len(query_size)
    images = tf.transpose(values, [0, rank + 1, *range(1, rank + 1), rank + 2])  # [b, v, *spatial, u]
    images = tf.reshape(images, [b * v, *context_size, u])
    kernel = tf.einsum("...ku->...uk", table)
    lambdas = _correlate(tf.nn.convolution, images, kernel, query_size, strides, dilation)
    n = tensors.product(query_size)
    lambdas = tf.reshape(lambdas, [b, v, n, k])
    outputs = tf.einsum("bnhk,bvnk->bnhv", tf.reshape(queries, [b, n, h, k]), lambdas)
    return tf.reshape(outputs, [b, *query_size, h, v])


def _depthwise_convolution(queries, values, table, strides, dilation):
    """The lambda convolution as a depthwise one with channel multiplier k (Figure 5), on one or two axes."""
    b, *query_size, h, k = tensors.sizes(queries)
    _, *context_size, v, u = tensors.sizes(values)
    if len(query_size) > 2:
        raise InputError(f"depthwise_conv takes sequences and images, got {len(query_size)} spatial axes")
    images = tf.reshape(values, [b, *context_size, v * u])
    kernel = tf.einsum("...ku->...uk", table)[..., tf.newaxis, :, :]  # [r, ..., 1, u, k]
    kernel = tf.reshape(tf.repeat(kernel, v, axis=-3), [*table.shape[:-2], v * u, k])
    lambdas = _correlate(_depthwise, images, kernel, query_size, strides, dilation)
    n = tensors.product(query_size)
    lambdas = tf.reduce_sum(tf.reshape(lambdas, [b, n, v, u, k]), axis=3)
    outputs = tf.einsum("bnhk,bnvk->bnhv", tf.reshape(queries, [b, n, h, k]), lambdas)
    return tf.reshape(outputs, [b, *query_size, h, v])


def _depthwise(images, kernel, strides, padding, dilations):
    """`tf.nn.depthwise_conv2d` on one or two axes."""
    if len(strides) == 1:
        images, kernel = images[:, tf.newaxis], kernel[tf.newaxis]
        strides, dilations = strides * 2, [1, *dilations]
        return tf.nn.depthwise_conv2d(images, kernel, [1, *strides, 1], padding, dilations=dilations)[:, 0]
    return tf.nn.depthwise_conv2d(images, kernel, [1, *strides, 1], padding, dilations=dilations)


def _correlate(convolution, images, kernel, query_size, strides, dilation):
    """Runs a convolution so that output i is centred on position `strides * i`, for every i in query_size."""
    rank = len(query_size)
    for axis, n in enumerate(query_size, start=1):
        halo = kernel.shape[axis - 1] // 2 * dilation
        images = tensors.pad(images, axis, halo, (n - 1) * strides + 1 + halo - tensors.sizes(images)[axis])
    # TensorFlow has no kernels for strides and dilation together.
    together = strides > 1 and dilation > 1
    outputs = convolution(
        images,
        kernel,
        strides=[1 if together else strides] * rank,
        padding="VALID",
        dilations=[dilation] * rank,
    )
    return outputs[(slice(None), *[slice(None, None, strides)] * rank)] if together else outputs
