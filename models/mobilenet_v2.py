# SPDX-License-Identifier: Apache-2.0
"""MobileNetV2 (Sandler et al. 2018), also with lightweight lambda blocks (Bello 2021, section E.4.2)."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tf_keras as keras

from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.stochastic_depth import StochasticDepth
from lambdanet.models.layer_builder import Parts
from lambdanet.models.spatial_ops import options_of

# Sandler et al. 2018, table 2: expansion, channels and strides of each group of blocks.
GROUPS = ((1, 16, 1), (6, 24, 2), (6, 32, 2), (6, 64, 2), (6, 96, 1), (6, 160, 2), (6, 320, 1))
PLAIN = ("I", "II", "III", "IIII", "III", "III", "I")
STEM_FILTERS = 32
FINAL_FILTERS = 1280


def inverted_bottleneck(parts: Parts, x, expansion: int, filters: int, strides: int, name: str):
    """1x1 expansion, 3x3 depthwise convolution, linear 1x1 projection: -> [b, h / s, w / s, filters]."""
    if expansion > 1:
        x = _convolution(parts, x, expansion * x.shape[-1], 1, 1, f"{name}_expand")
    x = keras.layers.DepthwiseConv2D(
        3,
        strides,
        padding="same",
        use_bias=False,
        depthwise_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
        depthwise_regularizer=parts.kernel_regularizer,
        name=f"{name}_depthwise",
    )(x)
    x = _act(parts, parts.norm(x, f"{name}_depthwise_norm"), f"{name}_depthwise_act")
    return parts.norm(parts.convolution(x, filters, 1, 1, f"{name}_project_conv"), f"{name}_project_norm")


def lightweight_lambda_block(parts: Parts, x, filters: int, name: str, **options: Any):
    """1x1 convolution, lambda layer and linear 1x1 convolution, none of which changes the width.

    The text asks for a query depth of 32 and 4 heads. Its 3.21 M parameters are those of 32 for all heads
    together, k = 8, and of no batch normalisation after the lambda layer; the ReLU6 stays.
    """
    x = _convolution(parts, x, filters, 1, 1, f"{name}_reduce")
    x = LambdaLayer(
        filters,
        batch_norm=parts.batch_norm,
        kernel_regularizer=parts.kernel_regularizer,
        name=f"{name}_lambda",
        **options,
    )(x)
    x = _act(parts, x, f"{name}_lambda_act")
    return parts.norm(parts.convolution(x, filters, 1, 1, f"{name}_project_conv"), f"{name}_project_norm")


@dataclasses.dataclass(frozen=True)
class MobileNetV2:
    """MobileNetV2 as data.

    Attributes:
      blocks: for each row of `GROUPS` a string with one letter per block: "I" is the inverted bottleneck, "L"
        the lightweight lambda block.
      source: where the architecture comes from.
      input_size: the side of the square images it is measured at, in pixels.
      options: of the lambda layers.
    """

    blocks: tuple[str, ...]
    source: str
    input_size: int = 224
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def overrides(self) -> set[str]:
        """The names of the layer options that a caller may override."""
        if not any("L" in letters for letters in self.blocks):
            return set()
        return options_of(LambdaLayer) - {"share_positions"}

    def endpoints(
        self, images, parts: Parts, stochastic_depth_rate: float = 0.0, **overrides: Any
    ) -> dict[str, Any]:
        """Builds the trunk: images [b, h, w, c] -> {"2": ..., "5": ...} at strides 4, 8, 16 and 32.

        The stochastic depth rate rises from block to block up to the given one.
        """
        options = {**self.options, **overrides}
        x = _convolution(parts, images, STEM_FILTERS, 3, 2, "stem")
        level, endpoints = 1, {}
        number, last = 0, sum(map(len, self.blocks))
        for letter, expansion, filters, strides in self._blocks():
            number += 1
            name, residual = f"block{number}", x
            if letter == "L":
                x = lightweight_lambda_block(parts, x, filters, name, **options)
            else:
                x = inverted_bottleneck(parts, x, expansion, filters, strides, name)
            if strides == 1 and residual.shape[-1] == filters:
                if stochastic_depth_rate:
                    x = StochasticDepth(stochastic_depth_rate * number / last, name=f"{name}_drop")(x)
                x = keras.layers.Add(name=f"{name}_add")([x, residual])
            level += strides > 1
            endpoints[str(level)] = x
        return {level: endpoints[level] for level in ("2", "3", "4", "5")}

    def logits(self, endpoints: Mapping[str, Any], parts: Parts, num_classes: int, dropout_rate: float = 0.0):
        """The classifier: 1x1 convolution, mean over the map, dropout, projection -> [b, num_classes]."""
        x = _convolution(parts, endpoints["5"], FINAL_FILTERS, 1, 1, "final")
        return parts.classifier(x, num_classes, dropout_rate)

    def abridged(self) -> tuple["MobileNetV2", dict[str, int]]:
        """Returns the network itself, which is small; see `ResNet.abridged`."""
        return self, {}

    def _blocks(self) -> Iterator[tuple[str, int, int, int]]:
        """Yields letter, expansion, channels and strides of each block."""
        for letters, (expansion, filters, strides) in zip(self.blocks, GROUPS, strict=True):
            for index, letter in enumerate(letters):
                yield letter, expansion, filters, strides if index == 0 else 1


def _convolution(parts: Parts, x, filters: int, kernel_size: int, strides: int, name: str):
    x = parts.convolution(x, filters, kernel_size, strides, f"{name}_conv")
    return _act(parts, parts.norm(x, f"{name}_norm"), f"{name}_act")


def _act(parts: Parts, x, name: str):
    return parts.act(x, name, "relu6")


MODELS = {
    "mobilenet_v2": MobileNetV2(PLAIN, "Table 17"),
    "mobilenet_v2_lambda": MobileNetV2(
        ("I", "II", "III", "IIIL", "III", "IIL", "I"),
        "Table 17, 2 lightweight lambda blocks",
        options={"key_dim": 8, "num_heads": 4, "scope": 5},
    ),
}
