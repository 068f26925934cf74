# SPDX-License-Identifier: Apache-2.0
"""Channel attention (Hu et al. 2018)."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.errors import check_count, invalid
from lambdanet.layers.layer import Layer
from lambdanet.layers.sublayers import build_sublayer
from lambdanet.ops import kernels


@keras.saving.register_keras_serializable(package="lambdanet")
class SqueezeExcite(Layer):
    """Scales every channel by a gate in (0, 1) computed from the mean of the map.

    gate = sigmoid(W2 relu(W1 mean(x) + b1) + b2), with W1: c -> ratio * c and W2: ratio * c -> c, both
    initialized by He's rule. The hidden width is rounded, and at least `multiple_of`.

    Input: a map [b, h, w, c], or a map and its means [b, c], where these are known. Output: [b, h, w, c].

    Args:
      ratio: the ratio of the hidden width to c, in (0, 1]. ResNet-RS and LambdaResNets use 1/4.
      kernel_regularizer: regularizer of both projections.
      multiple_of: a divisor of the hidden width; 8 in timm's networks.

    Raises:
      InputError: for a ratio outside (0, 1], or a `multiple_of` that is not a positive integer.
    """

    def __init__(
        self, ratio: float = 0.25, kernel_regularizer: Any = None, multiple_of: int = 1, **kwargs: Any
    ):
        super().__init__(**kwargs)
        if not 0 < ratio <= 1:
            raise invalid("ratio", "in (0, 1]", ratio)
        self.ratio = ratio
        self.multiple_of = check_count("multiple_of", multiple_of)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape):
        channels = self.compute_output_shape(input_shape)[-1]
        hidden = self.multiple_of * max(1, int(channels * self.ratio / self.multiple_of + 0.5))
        self._reduce = self._projection("reduce", channels, hidden, "relu")
        self._expand = self._projection("expand", hidden, channels, "sigmoid")
        super().build(input_shape)

    def call(self, inputs):
        x, means = inputs if isinstance(inputs, (list, tuple)) else (inputs, K.mean(inputs, [1, 2]))
        gate = self._expand(self._reduce(means))[:, K.newaxis, K.newaxis]  # [b, 1, 1, c]
        return kernels.current().scale_channels(x, gate)

    def compute_output_shape(self, input_shape):
        has_means = isinstance(input_shape[0], (list, tuple, compat.Shape))
        return compat.Shape(input_shape[0] if has_means else input_shape)

    def _projection(self, name: str, channels: int, units: int, activation: str) -> keras.layers.Dense:
        layer = compat.Dense(
            units,
            activation=activation,
            kernel_initializer="he_normal",
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )
        return build_sublayer(layer, [None, channels])
