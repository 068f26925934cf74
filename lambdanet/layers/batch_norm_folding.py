# SPDX-License-Identifier: Apache-2.0
"""Folding a batch normalization, which is affine at inference, into the projection before it."""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.layers.pooled_batch_norm import OnePassBatchNormalization, PooledBatchNormalization

NORMS = (keras.layers.BatchNormalization, OnePassBatchNormalization, PooledBatchNormalization)
# The number of axes of a kernel, from the last, that the output channels are along.
CHANNEL_AXES = {
    keras.layers.Dense: 1,
    compat.Dense: 1,
    keras.layers.Conv1D: 1,
    keras.layers.Conv2D: 1,
    keras.layers.Conv3D: 1,
    keras.layers.DepthwiseConv2D: 2,
}


def is_linear_projection(layer: keras.layers.Layer) -> bool:
    """Whether a layer has a kernel with the output channels last, and no activation."""
    return (
        type(layer) in CHANNEL_AXES
        and layer.activation is keras.activations.linear
        and len(layer.weights) == 1 + layer.use_bias  # others have adapters or scales of quantization
        and getattr(layer, "data_format", "channels_last") == "channels_last"
    )


def is_channel_norm(layer: keras.layers.Layer, rank: int) -> bool:
    """Whether a layer is a batch normalization of the channels of arrays of this rank, their last axis."""
    return (
        type(layer) in NORMS
        and len(layer.weights) == layer.scale + layer.center + 2  # others have statistics of `renorm`
        and [axis % rank for axis in K.flatten(layer.axis)] == [rank - 1]
    )


def scale_and_offset(norm: keras.layers.BatchNormalization) -> tuple[Any, Any]:
    """Returns what a normalization is at inference, scale * x + offset, [c] each, NumPy arrays of float64.

    scale = gamma / sqrt(variance + epsilon), offset = beta - scale * mean, with the moving statistics.
    """
    *learned, mean, variance = (weight.astype("float64") for weight in norm.get_weights())
    gamma = learned.pop(0) if norm.scale else 1.0
    beta = learned.pop(0) if norm.center else 0.0
    scale = gamma / (variance + norm.epsilon) ** 0.5
    return scale, beta - scale * mean


def folded_weights(projection: keras.layers.Layer, norm: keras.layers.BatchNormalization) -> list[Any]:
    """Returns the kernel and bias of a projection that includes the normalization after it, NumPy arrays."""
    kernel, *biases = projection.get_weights()
    scale, offset = scale_and_offset(norm)
    by_channel = scale.reshape(kernel.shape[-CHANNEL_AXES[type(projection)] :])
    bias = sum((scale * bias for bias in biases), offset)
    return [(kernel * by_channel).astype(kernel.dtype), bias.astype(kernel.dtype)]


def copy_folded(layer: Any, copy: Any, names: Sequence[str]) -> None:
    """Sets the weights of parts of a copy, with the normalizations of the layer (`NAME_norm`) folded in."""
    for name in names:
        part, norm = getattr(layer, name, None), getattr(layer, f"{name}_norm", None)
        if part is not None:
            getattr(copy, name).set_weights(folded_weights(part, norm) if norm else part.get_weights())
