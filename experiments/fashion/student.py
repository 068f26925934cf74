# SPDX-License-Identifier: Apache-2.0
"""A lambda layer with the mistakes of published reproductions as switches."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.backend.tensors import product, sizes
from lambdanet.layers.lambda_layer import LambdaLayer, Projections


@keras.saving.register_keras_serializable(package="experiments")
class StudentLambdaLayer(LambdaLayer):
    """A `LambdaLayer` with none, one or more mistakes; without them, it is one.

    Args:
      softmax_over_channels: whether the softmax of keys is over their channels instead of positions.
      mixed_inputs: whether the map [b, c, n] becomes positions [b, n, c] by a reshape, without a
        transposition, as in TU Delft's code: a position then holds pieces of several channels.
      mixed_keys: the same of the keys, [b, n, k * u] to [b, u, k, n].
      normalized_positions: whether values are normalized over the batch and the channels, each position for
        itself, instead of each channel over the batch and the positions.
      **options: those of `LambdaLayer`.
    """

    def __init__(
        self,
        *arguments: Any,
        softmax_over_channels: bool = False,
        mixed_inputs: bool = False,
        mixed_keys: bool = False,
        normalized_positions: bool = False,
        **options: Any,
    ):
        if softmax_over_channels:
            options["key_normalization"] = None
        super().__init__(*arguments, **options)
        self.softmax_over_channels = softmax_over_channels
        self.mixed_inputs = mixed_inputs
        self.mixed_keys = mixed_keys
        self.normalized_positions = normalized_positions

    def build(self, input_shape: K.Shape) -> None:
        super().build(input_shape)
        if self.normalized_positions:
            unused: Any = self._values_norm
            unused.trainable = False
            norm = keras.layers.BatchNormalization(axis=1, **self.batch_norm)
            norm.build([None, product(input_shape[1:-1]), 1, self._value_dim])
            self._values_norm = norm

    def project(self, inputs: K.Tensor, *arguments: Any, **options: Any) -> Projections:
        if self.mixed_inputs:
            inputs = _mixed(inputs)
        parts = super().project(inputs, *arguments, **options)
        keys = parts.keys
        if self.mixed_keys:
            keys = [_mixed_keys(x) for x in keys]
        if self.softmax_over_channels:
            keys = [keras.ops.softmax(x, axis=-2) for x in keys]
        return parts._replace(keys=keys)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "softmax_over_channels": self.softmax_over_channels,
            "mixed_inputs": self.mixed_inputs,
            "mixed_keys": self.mixed_keys,
            "normalized_positions": self.normalized_positions,
        }


def _mixed(x: K.Tensor) -> K.Tensor:
    """Reads the memory of a map with its channels first, [b, c, h, w], as one with its channels last."""
    shape = sizes(x)
    first = keras.ops.transpose(x, [0, 3, 1, 2])
    return keras.ops.reshape(first, shape)


def _mixed_keys(x: K.Tensor) -> K.Tensor:
    """Reads the memory of keys [b, h, w, k, u] as [b, u, k, h, w]."""
    b, h, w, k, u = sizes(x)
    read = keras.ops.reshape(x, [b, u, k, h, w])
    return keras.ops.transpose(read, [0, 3, 4, 2, 1])
