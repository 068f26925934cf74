# SPDX-License-Identifier: Apache-2.0
"""Channel attention: squeeze-and-excitation (Hu et al. 2018), and by a convolution (Wang et al. 2020)."""

import math
from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras
from lambdanet.core.errors import check_count, invalid
from lambdanet.layers.argument_checks import check_scope_or_none
from lambdanet.layers.layer import Layer, build_sublayer
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

    Call arguments:

    * inputs: a map [b, h, w, c], or the list of a map [b, h, w, c] and its means [b, c].

    Raises:
      InputError: for a ratio outside (0, 1], a `multiple_of` that is not a positive integer, or an input of
        another rank.
    """

    takes_maps = True

    def __init__(
        self,
        ratio: float = 0.25,
        kernel_regularizer: Any = None,
        multiple_of: int = 1,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise invalid("ratio", "in (0, 1]", ratio)
        self.ratio = ratio
        self.multiple_of = check_count("multiple_of", multiple_of)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Sequence[Any]) -> None:
        channels = self.compute_output_shape(input_shape)[-1]
        hidden = self.multiple_of * max(
            1, int(channels * self.ratio / self.multiple_of + 0.5)
        )
        self._reduce = self._projection("reduce", channels, hidden, "relu")
        self._expand = self._projection("expand", hidden, channels, "sigmoid")
        super().build(input_shape)

    def call(self, inputs: Tensor | Sequence[Tensor]) -> Tensor:
        x, means = (
            inputs
            if isinstance(inputs, (list, tuple))
            else (inputs, K.mean(inputs, [1, 2]))
        )
        # [b, 1, 1, c]
        gate = self._expand(self._reduce(means))[:, K.newaxis, K.newaxis]
        return kernels.kernels_for_device().scale_channels(x, gate)

    def compute_output_shape(self, input_shape: Sequence[Any]) -> Shape:
        has_means = isinstance(input_shape[0], list | tuple)
        return tuple(input_shape[0] if has_means else input_shape)

    def _projection(
        self, name: str, channels: int, units: int, activation: str
    ) -> keras.layers.Dense:
        layer = keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=compat.VarianceScaling(
                2.0, "fan_in", "truncated_normal"
            ),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )
        return build_sublayer(layer, [None, channels])


@keras.saving.register_keras_serializable(package="lambdanet")
class EfficientChannelAttention(Layer):
    """Scales every channel by a gate in (0, 1) computed from the means of the channels next to it.

    gate = sigmoid(w * mean(x)), where * is a convolution over the channels, zero beyond both ends, with a
    kernel of k weights and no bias.

    Input and output: [b, h, w, c].

    Args:
      kernel_size: k, odd. Default: (log2(c) + 1) / 2 rounded to an odd number, at least 3 (equation 12 of the
        paper): 3 for 64 channels, 5 for 128 to 512.
      kernel_regularizer: regularizer of the kernel.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, h, w, c].

    Raises:
      InputError: for a kernel size that is not a positive odd integer, or an input of another rank.

    Example:
      >>> tuple(EfficientChannelAttention()(keras.ops.zeros([2, 14, 14, 128])).shape)
      (2, 14, 14, 128)
    """

    takes_maps = True

    def __init__(
        self,
        kernel_size: int | None = None,
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel_size = check_scope_or_none("kernel_size", kernel_size)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Shape) -> None:
        size = self.kernel_size or max(int((math.log2(input_shape[-1]) + 1) / 2) | 1, 3)
        self.kernel = self.add_weight(
            name="kernel",
            shape=[size, 1, 1],
            initializer=compat.VarianceScaling(2.0, "fan_in", "truncated_normal"),
            regularizer=self.kernel_regularizer,
        )
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        means = K.mean(inputs, axis=[1, 2])[..., K.newaxis]  # [b, c, 1]
        gate = K.sigmoid(K.conv(means, K.cast(self.kernel, means.dtype), 1, "SAME"))
        return inputs * K.transpose(gate, [0, 2, 1])[:, K.newaxis]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)
