# SPDX-License-Identifier: Apache-2.0
"""Sublayers that are built with their parent."""

from collections.abc import Sequence
from typing import Any

from lambdanet.backend import compat, keras
from lambdanet.layers.batch_norm import BatchNormalization

# The momentum and epsilon of the TPU ResNet code that the paper builds on.
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def build_sublayer(layer: keras.layers.Layer, input_shape: Sequence[int | None]) -> keras.layers.Layer:
    """Creates the variables of a sublayer now, under its own name, and returns it.

    A layer that builds its sublayers in its own `build` has all its variables as soon as its input shape is
    known, with the names of the sublayers in theirs.
    """
    with compat.variable_scope(layer):
        layer.build(input_shape)
    return layer


def build_norm(parent: Any, name: str, channels: int) -> keras.layers.BatchNormalization | None:
    """Creates the batch normalization of a parent, in its precision; None without `use_batch_norm`."""
    if not parent.use_batch_norm:
        return None
    layer = BatchNormalization(**parent.batch_norm, dtype=parent.dtype_policy, name=name)
    return build_sublayer(layer, [None, None, 1, channels])


def build_projection(
    parent: keras.layers.Layer, name: str, channels: int, units: int, stddev: float, use_bias: bool = False
) -> keras.layers.Dense:
    """Creates a linear map of maps [b, h, w, channels], in the precision of its parent."""
    dense = compat.Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=keras.initializers.RandomNormal(stddev=stddev),
        kernel_regularizer=parent.kernel_regularizer,
        dtype=parent.dtype_policy,
        name=name,
    )
    return build_sublayer(dense, [None, None, None, channels])
