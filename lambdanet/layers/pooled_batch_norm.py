# SPDX-License-Identifier: Apache-2.0
"""Batch normalization with the mean of each map, for the squeeze-and-excitation that follows it."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.backend.tensors import product, sizes
from lambdanet.layers.layer import Layer
from lambdanet.ops import kernels


@keras.saving.register_keras_serializable(package="lambdanet")
class PooledBatchNormalization(Layer, keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` that also returns the mean of its output over each map.

    The mean of a normalized map is the normalized mean of the map, so one pass over the input can compute the
    statistics of the batch and of every map, where a mean taken afterwards needs a second pass; so can one
    pass compute the gradients. Training steps on a TPU, whose time is spent in such passes, use this form;
    other cases, including synchronized statistics, use two passes, with the same results.

    Input: [b, h, w, c]. Output: the map [b, h, w, c] and the means [b, c]. The arguments are those of the
    base class, with its channels last.
    """

    def call(self, inputs, training=None, mask=None):
        if self._takes_one_pass(training):
            return self._normalize_in_one_pass(inputs)
        outputs = self._normalize(inputs, training, mask)
        return [outputs, K.mean(outputs, axis=[1, 2])]

    def get_config(self):
        return {**super().get_config(), "synchronized": self.synchronized}  # which tf_keras omits

    def compute_output_shape(self, input_shape):
        b, *_, channels = compat.Shape(input_shape)
        return [compat.Shape(input_shape), compat.Shape([b, channels])]

    def _normalize(self, inputs: K.Tensor, training: bool | None, mask: K.Tensor | None) -> K.Tensor:
        """Does what Keras does, which on torch computes float64 in float32 (Keras 3.15)."""
        is_double = K.ENGINE == "torch" and self.compute_dtype == "float64"
        if not is_double or mask is not None or getattr(self, "renorm", False):
            return keras.layers.BatchNormalization.call(self, inputs, training=training, mask=mask)
        mean, variance = self.moving_mean, self.moving_variance
        if training and self.trainable:
            axes = list(range(len(inputs.shape) - 1))
            mean = K.mean(inputs, axes)
            variance = K.mean(K.square(inputs - mean), axes)
            self._update_averages(mean, variance)
        scale = K.rsqrt(variance + self.epsilon) * (self.gamma if self.scale else 1.0)
        return (inputs - mean) * scale + (self.beta if self.center else 0.0)

    def _takes_one_pass(self, training: bool | None) -> bool:
        if kernels.current().normalize is None or training is not True or not self.trainable:
            return False
        return bool(getattr(self, "fused", True)) and not self.synchronized and self.center and self.scale

    def _normalize_in_one_pass(self, inputs: K.Tensor) -> list[K.Tensor]:
        """Returns the map and its means, and updates the averages."""
        normalize: Any = kernels.current().normalize
        outputs, means, mean, variance = normalize(inputs, self.gamma, self.beta, self.epsilon)
        self._update_averages(mean, compat.averaged_variance(variance, product(sizes(inputs)[:-1])))
        return [outputs, means]

    def _update_averages(self, mean: K.Tensor, variance: K.Tensor) -> None:
        for average, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            average.assign_sub((average - value) * (1 - self.momentum))


@keras.saving.register_keras_serializable(package="lambdanet")
class OnePassBatchNormalization(PooledBatchNormalization):
    """The same without the means.

    Keras 3 has no fused kernel, and takes two passes for mean and variance. Under tf_keras, networks have it
    for synchronized statistics alone, which its configuration keeps.
    """

    def call(self, inputs, training=None, mask=None):
        if self._takes_one_pass(training):
            return self._normalize_in_one_pass(inputs)[0]
        return self._normalize(inputs, training, mask)

    def compute_output_shape(self, input_shape):
        return compat.Shape(input_shape)


OnePassBatchNormalization.__name__ = "BatchNormalization"  # from which Keras derives names in .weights.h5

# The batch normalization of all layers and models that need no means.
BatchNormalization = keras.layers.BatchNormalization if K.KERAS == "tf_keras" else OnePassBatchNormalization
