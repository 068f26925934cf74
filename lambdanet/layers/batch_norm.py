# SPDX-License-Identifier: Apache-2.0
"""Batch normalization: with the mean of each map, in one pass, and folded into the projection before it."""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.backend.device import num_devices
from lambdanet.backend.tensors import at_least_float32, sizes
from lambdanet.core.errors import check_flags, invalid
from lambdanet.layers.layer import Layer, PointwiseLayer, build_sublayer
from lambdanet.ops import kernels
from lambdanet.ops.position_term import devices_of

# The momentum and epsilon of the TPU ResNet code that the paper builds on.
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}
FUSED_TYPES = ("float32", "bfloat16", "float16")  # of inputs of TensorFlow's kernel


@keras.saving.register_keras_serializable(package="lambdanet")
class PooledBatchNormalization(Layer, keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` that also returns the mean of its output over each map.

    The mean of a normalized map is the normalized mean of the map, so one pass over the input can compute the
    statistics of the batch and of every map, where a mean taken afterwards needs a second pass; so can one
    pass compute the gradients. Training steps on a TPU, whose time is spent in such passes, use this form;
    other cases, including synchronized statistics, use two passes, with the same results.

    The moving variance averages the biased variance of the batch on every backend, also where TensorFlow's
    fused kernel computes the unbiased one. Under data parallelism on JAX, each device has statistics of its
    own part of the batch, as the replicas of TensorFlow do; the moving averages are those of the mean over
    the devices.

    Input: [b, h, w, c]. Output: the map [b, h, w, c] and the means [b, c]. The arguments are those of the
    base class, with its channels last; `synchronized`, for statistics of the whole batch, also works on JAX.

    Call arguments:

    * inputs: [b, h, w, c].
    * training: whether to normalize by the statistics of the batch, and to update the moving averages, if the
      layer is trainable; else the moving averages are used. Default: whether the model trains.
    * mask: as in `keras.layers.BatchNormalization`, [b, h, w]: the positions that count in the statistics.
    """

    takes_maps = True

    def __init__(self, *args: Any, synchronized: bool = False, **kwargs: Any):
        check_flags(synchronized=synchronized)
        # Keras rejects it on JAX
        options = {} if K.ENGINE == "jax" else {"synchronized": synchronized}
        super().__init__(*args, **options, **kwargs)
        self.synchronized = synchronized

    def call(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Sequence[Tensor]:
        if mask is None and self._takes_one_pass(inputs, training):
            return self._normalize_by(kernels.kernels_for_device().normalize, inputs)
        outputs = self._normalize(inputs, training, mask)
        return [outputs, K.mean(outputs, axis=[1, 2])]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "synchronized": self.synchronized}

    def compute_output_shape(self, input_shape: Shape) -> Any:
        b, *_, channels = input_shape
        return [tuple(input_shape), (b, channels)]

    def build(self, input_shape: Shape) -> None:
        if self.takes_maps and self.axis not in (-1, 3):
            raise invalid(f"axis of {type(self).__name__}", "-1, channels", self.axis)
        super().build(input_shape)

    def _normalize(
        self, inputs: Tensor, training: bool | None, mask: Tensor | None
    ) -> Tensor:
        """Like Keras's, but calls functions of `K` where they are faster or Keras's result is wrong."""
        rank = len(inputs.shape)
        dtype = K.dtype_name(inputs.dtype)
        if not (training and self.trainable):
            mask = None  # for the statistics of the batch alone
        if self.axis in (-1, rank - 1) and not self.renorm:
            has_kernel = K.ENGINE == "tensorflow" and rank == 4 and dtype in FUSED_TYPES
            # Keras computes in float32
            is_float64 = K.ENGINE != "tensorflow" and dtype == "float64"
            if not (training and self.trainable):
                if has_kernel or is_float64:
                    moving = self.moving_mean, self.moving_variance
                    return K.scale_channels(
                        inputs, *moving, *self._gamma_and_beta(), self.epsilon
                    )
            elif mask is not None:
                return self._normalize_by_mask(inputs, mask)
            elif (
                is_float64
                # Keras's variance, E[x^2] - E[x]^2, can be negative
                or K.ENGINE == "torch"
                or (has_kernel and not self.synchronized)
                # Statistics of each device, or of all of them; Keras has neither on JAX
                or (K.ENGINE == "jax" and (self.synchronized or num_devices() > 1))
            ):
                return self._normalize_by(K.batch_norm, inputs)[0]
        return keras.layers.BatchNormalization.call(
            self, inputs, training=training, mask=mask
        )

    def _normalize_by_mask(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Normalizes by the statistics of some positions, in two passes on every device.

        Args:
          inputs: [b, ..., c].
          mask: true for the positions that count, [b, ...].

        Returns:
          [b, ..., c]; all of it is normalized.
        """
        groups = self._groups(inputs).get("groups", 1)
        shape = sizes(inputs)
        gamma, beta = self._gamma_and_beta()
        x = K.reshape(at_least_float32(inputs), [groups, -1, *shape[1:]])
        counts = K.reshape(K.cast(mask, "bool"), [groups, -1, *shape[1:-1], 1])
        axes = list(range(1, len(shape)))

        def average(y: Tensor) -> Tensor:  # [g, ..., c] -> [g, 1, ..., c]
            if self.synchronized and K.ENGINE == "tensorflow":
                moments = keras.ops.moments
                return moments(y, axes, keepdims=True, synchronized=True)[0]
            return K.mean(y, axes, keepdims=True)

        share = average(K.cast(counts, x.dtype))
        zero = K.zeros([], x.dtype)
        mean = K.divide_no_nan(average(K.where(counts, x, zero)), share)
        squares = K.where(counts, K.square(x - mean), zero)
        variance = K.divide_no_nan(average(squares), share)
        scale = K.rsqrt(variance + self.epsilon) * K.cast(gamma, x.dtype)
        outputs = (x - mean) * scale + K.cast(beta, x.dtype)
        axes = list(range(len(shape)))
        self._update_averages(K.mean(mean, axes), K.mean(variance, axes))
        return K.cast(K.reshape(outputs, shape), inputs.dtype)

    def _takes_one_pass(self, inputs: Tensor, training: bool | None) -> bool:
        if (
            kernels.kernels_for_device().normalize is None
            or len(inputs.shape) != 4
            or training is not True
            or not self.trainable
        ):
            return False
        is_local = not self.synchronized or K.ENGINE == "jax"
        return bool(is_local and self.center and self.scale)

    def _normalize_by(self, normalize: Any, inputs: Tensor) -> list[Tensor]:
        """Returns what a function returns before mean and variance, with which it updates the averages."""
        parameters = self._gamma_and_beta()
        *outputs, mean, variance = normalize(
            inputs, *parameters, self.epsilon, **self._groups(inputs)
        )
        self._update_averages(mean, variance)
        return outputs

    def _gamma_and_beta(self) -> tuple[Tensor, Tensor]:
        shape = self.moving_mean.shape
        gamma = K.convert_to_tensor(self.gamma) if self.scale else K.ones(shape)
        beta = K.convert_to_tensor(self.beta) if self.center else K.zeros(shape)
        return gamma, beta

    def _groups(self, inputs: Tensor) -> dict[str, int]:
        """Returns the number of parts with statistics of their own, where that is not one."""
        groups = 1 if self.synchronized else devices_of(inputs.shape[0])
        return {} if groups == 1 else {"groups": groups}

    def _update_averages(self, mean: Tensor, variance: Tensor) -> None:
        for average, value in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            average.assign_sub((average - value) * (1 - self.momentum))


@keras.saving.register_keras_serializable(package="lambdanet")
class OnePassBatchNormalization(PooledBatchNormalization):
    """Variant without the means: the batch normalization of all layers and models that need none."""

    takes_maps = False

    def call(
        self,
        inputs: Tensor,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        if mask is None and self._takes_one_pass(inputs, training):
            return super().call(inputs, training)[0]
        return self._normalize(inputs, training, mask)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)


# From which Keras derives names in .weights.h5.
OnePassBatchNormalization.__name__ = "BatchNormalization"

BatchNormalization = OnePassBatchNormalization

NORMS = (
    keras.layers.BatchNormalization,
    OnePassBatchNormalization,
    PooledBatchNormalization,
)
# The number of axes of a kernel, from the last, that the output channels are along.
CHANNEL_AXES = {
    keras.layers.Dense: 1,
    keras.layers.Conv1D: 1,
    keras.layers.Conv2D: 1,
    keras.layers.Conv3D: 1,
    keras.layers.DepthwiseConv2D: 2,
}


def build_norm(
    parent: Any, name: str, channels: int
) -> keras.layers.BatchNormalization | None:
    """Creates the batch normalization of a parent, in its precision; None with `batch_norm=False`."""
    if parent.batch_norm is False:
        return None
    given = {} if parent.batch_norm is True else parent.batch_norm
    options = {**BATCH_NORM, **given}
    layer = BatchNormalization(**options, dtype=parent.dtype_policy, name=name)
    return build_sublayer(layer, [None, None, 1, channels])


def is_linear_projection(layer: keras.layers.Layer) -> bool:
    """Whether a layer has a kernel with the output channels last, and no activation."""
    return (
        type(layer) in CHANNEL_AXES
        and layer.activation is keras.activations.linear
        # Others have adapters or scales of quantization.
        and len(layer.weights) == 1 + layer.use_bias
        and getattr(layer, "data_format", "channels_last") == "channels_last"
    )


def is_channel_norm(layer: keras.layers.Layer, rank: int) -> bool:
    """Whether a layer is a batch normalization of the channels of arrays of this rank, their last axis."""
    return (
        type(layer) in NORMS
        # Others have statistics of `renorm`.
        and len(layer.weights) == layer.scale + layer.center + 2
        and [axis % rank for axis in K.flatten(layer.axis)] == [rank - 1]
    )


def scale_and_offset(norm: keras.layers.BatchNormalization) -> tuple[Any, Any]:
    """Returns what a normalization is at inference, scale * x + offset, [c] each, NumPy arrays of float64.

    scale = gamma / sqrt(variance + epsilon), offset = beta - scale * mean, with the moving statistics.
    """
    *learned, mean, variance = (
        weight.astype("float64") for weight in norm.get_weights()
    )
    gamma = learned.pop(0) if norm.scale else 1.0
    beta = learned.pop(0) if norm.center else 0.0
    scale = gamma / (variance + norm.epsilon) ** 0.5
    return scale, beta - scale * mean


def folded_weights(
    projection: keras.layers.Layer, norm: keras.layers.BatchNormalization
) -> list[Any]:
    """Returns the kernel and bias of a projection that includes the normalization after it, NumPy arrays."""
    kernel, *biases = projection.get_weights()
    scale, offset = scale_and_offset(norm)
    by_channel = scale.reshape(kernel.shape[-CHANNEL_AXES[type(projection)] :])
    bias = sum((scale * bias for bias in biases), offset)
    return [(kernel * by_channel).astype(kernel.dtype), bias.astype(kernel.dtype)]


def copy_folded(layer: Any, copy: Any, names: Sequence[str]) -> None:
    """Sets the weights of parts of a copy, with the normalizations of the layer (`NAME_norm`) folded in."""
    for name in names:
        part = getattr(layer, name, None)
        norm = getattr(layer, f"{name}_norm", None)
        if part is not None:
            getattr(copy, name).set_weights(
                folded_weights(part, norm) if norm else part.get_weights()
            )


@keras.saving.register_keras_serializable(package="lambdanet")
class ChannelAffine(PointwiseLayer):
    """Scales and shifts every channel, scale * x + offset: what a batch normalization computes at inference.

    Input and output: [..., c].

    Args:
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [..., c].

    Raises:
      InputError: for an input with an unknown number of channels.

    Example:
      >>> tuple(ChannelAffine()(keras.ops.zeros([2, 14, 14, 64])).shape)
      (2, 14, 14, 64)
    """

    def build(self, input_shape: Shape) -> None:
        channels = input_shape[-1]
        if channels is None:
            raise invalid("the number of channels", "known", tuple(input_shape))
        self.scale = self.add_weight(
            name="scale", shape=[channels], initializer="ones", autocast=False
        )
        self.offset = self.add_weight(
            name="offset", shape=[channels], initializer="zeros", autocast=False
        )
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        wide = at_least_float32(inputs)  # as batch normalizations do
        scale = K.cast(self.scale, wide.dtype)
        outputs = wide * scale + K.cast(self.offset, wide.dtype)
        return K.cast(outputs, inputs.dtype)
