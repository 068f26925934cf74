# SPDX-License-Identifier: Apache-2.0
"""MobileNetV2 (Sandler et al. 2018), also with lightweight lambda blocks (Bello 2021, section E.4.2)."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from lambdanet.backend import Tensor, compat, keras
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.old_arguments import translate
from lambdanet.layers.stochastic_depth import StochasticDepth
from lambdanet.models.layer_builder import Architecture, LayerBuilder
from lambdanet.models.output_stride import FinerMaps
from lambdanet.models.spatial_ops import option_names

# Sandler et al. 2018, table 2: expansion, channels and strides of each group of blocks.
GROUPS = (
    (1, 16, 1),
    (6, 24, 2),
    (6, 32, 2),
    (6, 64, 2),
    (6, 96, 1),
    (6, 160, 2),
    (6, 320, 1),
)
PLAIN = ("I", "II", "III", "IIII", "III", "III", "I")
STEM_FILTERS = 32
FINAL_FILTERS = 1280


def inverted_bottleneck(
    builder: LayerBuilder,
    x: Tensor,
    expansion: int,
    filters: int,
    strides: int,
    name: str,
) -> Tensor:
    """1x1 expansion, 3x3 depthwise convolution, linear 1x1 projection: -> [b, h / s, w / s, filters]."""
    if expansion > 1:
        x = builder.conv_norm_act(x, expansion * x.shape[-1], 1, 1, f"{name}_expand")
    depthwise = keras.layers.DepthwiseConv2D(
        3,
        strides,
        padding="same",
        use_bias=False,
        depthwise_initializer=compat.VarianceScaling(
            2.0, "fan_out", "untruncated_normal"
        ),
        depthwise_regularizer=builder.kernel_regularizer,
        name=f"{name}_depthwise",
    )
    x = builder.norm_act(depthwise(x), f"{name}_depthwise")
    return builder.conv_norm(x, filters, 1, 1, f"{name}_project")


def lightweight_lambda_block(
    builder: LayerBuilder, x: Tensor, filters: int, name: str, **options: Any
) -> Tensor:
    """1x1 convolution, lambda layer and linear 1x1 convolution, none of which changes the width.

    The text states a query depth of 32 and 4 heads. Its 3.21 M parameters fit 32 for all heads
    together, k = 8, and of no batch normalization after the lambda layer; the ReLU6 stays.
    """
    x = builder.conv_norm_act(x, filters, 1, 1, f"{name}_reduce")
    arguments = {"batch_norm": builder.batch_norm, **options}
    layer = LambdaLayer(
        filters,
        kernel_regularizer=builder.kernel_regularizer,
        name=f"{name}_lambda",
        **translate(arguments),
    )
    x = builder.act(layer(x), f"{name}_lambda_act")
    return builder.conv_norm(x, filters, 1, 1, f"{name}_project")


@dataclasses.dataclass(frozen=True)
class MobileNetV2(Architecture):
    """MobileNetV2 as data.

    Attributes:
      blocks: for each row of `GROUPS` a string with one letter per block: "I" is the inverted bottleneck, "L"
        the lightweight lambda block.
      options: the options of the lambda layers.
    """

    blocks: tuple[str, ...]
    source: str
    input_size: int = 224
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def option_names(self) -> set[str]:
        return option_names(LambdaLayer) if "L" in "".join(self.blocks) else set()

    def endpoints(
        self,
        images: Tensor,
        builder: LayerBuilder,
        stochastic_depth_rate: float = 0.0,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Builds the trunk; the stochastic depth rate rises linearly over the blocks, up to the given one."""
        builder = builder.for_network("relu6")
        options = {**self.options, **overrides}
        x = builder.conv_norm_act(images, STEM_FILTERS, 3, 2, "stem")
        level = 1
        finer = FinerMaps(builder.output_stride, 2)
        num_blocks = sum(map(len, self.blocks))
        for number, (letter, expansion, filters, strides) in enumerate(
            self._blocks(), start=1
        ):
            name = f"block{number}"
            x = finer.before_block(x, strides, name)
            residual = x
            if letter == "L":
                x = lightweight_lambda_block(builder, x, filters, name, **options)
            else:
                x = inverted_bottleneck(builder, x, expansion, filters, strides, name)
            if strides == 1 and residual.shape[-1] == filters:
                if stochastic_depth_rate:
                    drop_rate = stochastic_depth_rate * number / num_blocks
                    x = StochasticDepth(drop_rate, name=f"{name}_drop")(x)
                x = compat.Add(name=f"{name}_add")([x, residual])
            level += strides > 1
            finer.after_block(x, str(level))
        return finer.endpoints()

    def embedding(
        self,
        endpoints: dict[str, Any],
        builder: LayerBuilder,
        pooling: str | None = "avg",
    ) -> Tensor:
        """Builds what the classifier reads: a 1x1 convolution, pooled over the map."""
        x = builder.for_network("relu6").conv_norm_act(
            endpoints["5"], FINAL_FILTERS, 1, 1, "final"
        )
        return builder.pool(x, pooling)

    def _blocks(self) -> Iterator[tuple[str, int, int, int]]:
        """Yields letter, expansion, channels and strides of each block."""
        for letters, (expansion, filters, strides) in zip(
            self.blocks, GROUPS, strict=True
        ):
            for index, letter in enumerate(letters):
                yield letter, expansion, filters, strides if index == 0 else 1


MODELS = {
    "mobilenet_v2": MobileNetV2(PLAIN, "Table 17"),
    "mobilenet_v2_lambda": MobileNetV2(
        ("I", "II", "III", "IIIL", "III", "IIL", "I"),
        "Table 17, 2 lightweight lambda blocks",
        options={"key_dim": 8, "num_heads": 4, "scope": 5},
    ),
}
