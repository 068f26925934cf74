# SPDX-License-Identifier: Apache-2.0
"""The layers that every network of the zoo is built of: each constant is said here, once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tf_keras as keras

from lambdanet.layers.pooled_batch_norm import PooledBatchNormalization
from lambdanet.layers.sublayers import BATCH_NORM


@dataclasses.dataclass(frozen=True)
class Parts:
    """The layers of one network.

    Attributes:
      kernel_regularizer: of every convolution, projection and classifier.
      batch_norm: arguments of every batch normalisation, over momentum 0.9 and epsilon 1e-5.
      activation: of every block; None: that of the family.
    """

    kernel_regularizer: Any = None
    batch_norm: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    activation: str | None = None

    def __post_init__(self):
        object.__setattr__(self, "batch_norm", {**BATCH_NORM, **self.batch_norm})

    def convolution(self, x, filters: int, kernel_size: int, strides: int, name: str, groups: int = 1):
        """A convolution without a bias: [b, h, w, c] -> [b, h / strides, w / strides, filters]."""
        x, padding = self.padded(x, kernel_size, strides, name)
        return keras.layers.Conv2D(
            filters,
            kernel_size,
            strides,
            padding=padding,
            groups=groups,
            use_bias=False,
            kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
            kernel_regularizer=self.kernel_regularizer,
            name=name,
        )(x)

    def padded(self, x, kernel_size: int, strides: int, name: str) -> tuple[Any, str]:
        """The map that a convolution reads, and its padding: by default TensorFlow's own."""
        return x, "same"

    def norm(self, x, name: str, zero: bool = False, pooled: bool = False):
        """Batch normalisation; `zero` starts it at zero, so that a residual block starts as the identity.

        With `pooled` it gives the mean of each map too.
        """
        layer = PooledBatchNormalization if pooled else keras.layers.BatchNormalization
        return layer(gamma_initializer="zeros" if zero else "ones", **self.batch_norm, name=name)(x)

    def act(self, x, name: str, default: str = "relu"):
        """The activation of the network, or that of the family, `default`."""
        return keras.layers.Activation(self.activation or default, name=name)(x)

    def conv_norm_act(self, x, filters: int, kernel_size: int, strides: int, name: str):
        x = self.convolution(x, filters, kernel_size, strides, f"{name}_conv")
        return self.act(self.norm(x, f"{name}_norm"), f"{name}_act")

    def classifier(self, x, num_classes: int, dropout_rate: float = 0.0):
        """Mean over the map, dropout, projection: [b, h, w, c] -> float32 logits [b, num_classes]."""
        return self.projection(keras.layers.GlobalAveragePooling2D(name="pool")(x), num_classes, dropout_rate)

    def projection(self, x, num_classes: int, dropout_rate: float = 0.0):
        """Dropout, projection: [b, c] -> float32 logits [b, num_classes]; float64 under that policy."""
        is_double = keras.mixed_precision.global_policy().compute_dtype == "float64"
        if dropout_rate:
            x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
        return keras.layers.Dense(
            num_classes,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
            kernel_regularizer=self.kernel_regularizer,
            dtype="float64" if is_double else "float32",
            name="logits",
        )(x)
