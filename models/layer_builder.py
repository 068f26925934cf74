# SPDX-License-Identifier: Apache-2.0
"""The interface of the families of networks, and the layers that all of them consist of."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lambdanet.backend import Tensor, compat, keras
from lambdanet.backend.tensors import PerAxis
from lambdanet.layers.batch_norm import (
    BATCH_NORM,
    BatchNormalization,
    PooledBatchNormalization,
)
from lambdanet.models.output_stride import NATIVE

CLASSIFIER = "logits"  # the name of the last layer
DROPOUT = "dropout"  # the name of the layer before it, if any
POOLINGS = {
    "avg": keras.layers.GlobalAveragePooling2D,
    "max": keras.layers.GlobalMaxPooling2D,
}
CONVOLUTIONS = {  # by rank
    3: keras.layers.Conv1D,
    4: keras.layers.Conv2D,
    5: keras.layers.Conv3D,
}


@dataclasses.dataclass(frozen=True)
class LayerBuilder:
    """The settings of one network, and its convolutions, norms, activations and classifier.

    Attributes:
      kernel_regularizer: the regularizer of every convolution, projection and classifier.
      batch_norm: overrides of the batch-norm defaults (momentum 0.9, epsilon 1e-5).
      activation: the activation of every block; None: the network's (see `for_network`).
      symmetric_padding: whether strided convolutions pad both sides equally, as in PyTorch, or as
        TensorFlow's "same".
      output_stride: the largest stride of a map; see `lambdanet.models.output_stride`.
    """

    kernel_regularizer: Any = None
    batch_norm: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    activation: str | None = None
    symmetric_padding: bool = False
    output_stride: int = NATIVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_norm", {**BATCH_NORM, **self.batch_norm})

    def for_network(
        self, activation: str, symmetric_padding: bool = False
    ) -> "LayerBuilder":
        """Returns the builder with the settings of a network; an activation that is set already stays."""
        activation = self.activation or activation
        return dataclasses.replace(
            self, activation=activation, symmetric_padding=symmetric_padding
        )

    def convolution(
        self,
        x: Tensor,
        filters: int,
        kernel_size: PerAxis,
        strides: int,
        name: str,
        groups: int = 1,
        padding: str = "same",
        dilation_rate: int = 1,
    ) -> Tensor:
        """A convolution without a bias: [b, *size, c] -> [b, *size / strides, filters].

        Symmetric padding is for maps, and for kernels of one size along both axes.
        """
        symmetric = self.symmetric_padding and strides > 1
        if symmetric and isinstance(kernel_size, int) and kernel_size > 1:
            x = keras.layers.ZeroPadding2D(kernel_size // 2, name=f"{name}_padding")(x)
            padding = "valid"
        layer = CONVOLUTIONS[len(x.shape)](
            filters,
            kernel_size,
            strides,
            padding=padding,
            dilation_rate=dilation_rate,
            groups=groups,
            use_bias=False,
            kernel_initializer=compat.VarianceScaling(
                2.0, "fan_out", "untruncated_normal"
            ),
            kernel_regularizer=self.kernel_regularizer,
            name=name,
        )
        return layer(x)

    def norm(
        self, x: Tensor, name: str, zero: bool = False, pooled: bool = False
    ) -> Tensor:
        """Batch normalization.

        Args:
          x: [b, h, w, c].
          name: the name of the layer.
          zero: whether gamma starts at zero, so that a residual block starts as the identity.
          pooled: whether to also return the mean of each map.
        """
        norm = PooledBatchNormalization if pooled else BatchNormalization
        gamma_initializer = "zeros" if zero else "ones"
        return norm(gamma_initializer=gamma_initializer, **self.batch_norm, name=name)(
            x
        )

    def act(self, x: Tensor, name: str) -> Tensor:
        """The activation of the network."""
        return keras.layers.Activation(self.activation, name=name)(x)

    def norm_act(self, x: Tensor, name: str) -> Tensor:
        """Batch normalization and activation, `{name}_norm` and `{name}_act`."""
        return self.act(self.norm(x, f"{name}_norm"), f"{name}_act")

    def conv_norm(
        self, x: Tensor, filters: int, kernel_size: int, strides: int, name: str
    ) -> Tensor:
        """Convolution and batch normalization, `{name}_conv` and `{name}_norm`."""
        return self.norm(
            self.convolution(x, filters, kernel_size, strides, f"{name}_conv"),
            f"{name}_norm",
        )

    def conv_norm_act(
        self, x: Tensor, filters: int, kernel_size: int, strides: int, name: str
    ) -> Tensor:
        """Convolution, batch normalization and activation, with the same names."""
        return self.act(
            self.conv_norm(x, filters, kernel_size, strides, name), f"{name}_act"
        )

    def pool(self, x: Tensor, pooling: str | None) -> Tensor:
        """The mean ("avg") or maximum ("max") over the map, or (None) the map: [b, h, w, c] -> [b, c]."""
        return x if pooling is None else POOLINGS[pooling](name="pool")(x)

    def classifier(
        self,
        x: Tensor,
        num_classes: int,
        dropout_rate: float = 0.0,
        name: str = CLASSIFIER,
    ) -> Tensor:
        """Dropout, projection: [..., c] -> float32 logits [..., num_classes]; float64 under that policy."""
        if dropout_rate:
            x = keras.layers.Dropout(dropout_rate, name=DROPOUT)(x)
        layer = keras.layers.Dense(
            num_classes,
            kernel_initializer=compat.RandomNormal(stddev=0.01),
            kernel_regularizer=self.kernel_regularizer,
            dtype=logits_dtype(),
            name=name,
        )
        return layer(x)


def logits_dtype() -> str:
    """Returns the type of logits: float64 under that policy, else float32."""
    is_double = keras.mixed_precision.global_policy().compute_dtype == "float64"
    return "float64" if is_double else "float32"


class Architecture:
    """A network as data, which a `LayerBuilder` turns into layers.

    Attributes:
      source: the table or section that gives the architecture and its size.
      input_size: the side of the square images it is measured at, in pixels.
      task: what its logits are for, as in a recipe.
      rank: the number of spatial axes of its images.
      num_classes: the number of logits by default.
    """

    source: str
    input_size: int
    task = "classification"
    rank = 2
    num_classes = 1000

    def option_names(self) -> set[str]:
        """The names of the layer options that a caller may override."""
        return set()

    def endpoints(
        self,
        images: Tensor,
        builder: LayerBuilder,
        stochastic_depth_rate: float = 0.0,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Builds the trunk: images [b, h, w, c] -> {"1": ..., "5": ...} at strides 2, 4, 8, 16 and 32.

        Each is the last map at its stride. A network without a map at stride 2 has no "1".
        """
        raise NotImplementedError

    def embedding(
        self,
        endpoints: dict[str, Any],
        builder: LayerBuilder,
        pooling: str | None = "avg",
    ) -> Tensor:
        """Builds what the classifier reads: the pooled last map [b, d], or without pooling [b, h, w, d]."""
        return builder.pool(endpoints["5"], pooling)
