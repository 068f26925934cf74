# SPDX-License-Identifier: Apache-2.0
"""The residual trunk of ResNets, LambdaResNets and HaloNets.

A network is data: for each stage a string with one letter per block, and for each letter a kind of block.
`("CCC", "CCCC", "CCLCCC", "LLL")` is LambdaResNet-50 in the notation of the paper's Table 12.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lambdanet.backend import Tensor, compat, keras
from lambdanet.backend.tensors import ceil_div
from lambdanet.layers.channel_attention import SqueezeExcite
from lambdanet.layers.stochastic_depth import StochasticDepth
from lambdanet.models.layer_builder import Architecture, LayerBuilder
from lambdanet.models.output_stride import FinerMaps
from lambdanet.models.spatial_ops import BlockContext, Convolution, SpatialOperation

# Keras walks a functional graph by recursion, one frame per layer, when it builds or loads a model; the
# deepest trunk is a chain of 1,500 layers, and Python's default limit is 1,000 frames.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))

FILTERS = (64, 128, 256, 512)


def vanilla_stem(
    builder: LayerBuilder, x: Tensor, filters: int
) -> tuple[Tensor, Tensor]:
    """7x7 convolution and max-pool (He et al. 2016); see `Stem.build`."""
    half = builder.conv_norm_act(x, filters, 7, 2, "stem")  # [b, h/2, w/2, filters]
    return half, keras.layers.MaxPooling2D(3, 2, "same", name="stem_pool")(half)


def rs_stem(builder: LayerBuilder, x: Tensor, filters: int) -> tuple[Tensor, Tensor]:
    """Three 3x3 convolutions as in ResNet-D, then a strided one instead of the max-pool (ResNet-RS)."""
    x = builder.conv_norm_act(x, filters // 2, 3, 2, "stem1")
    x = builder.conv_norm_act(x, filters // 2, 3, 1, "stem2")
    half = builder.conv_norm_act(x, filters, 3, 1, "stem3")  # [b, h/2, w/2, filters]
    return half, builder.conv_norm_act(half, filters, 3, 2, "stem4")


def patch_stem(builder: LayerBuilder, x: Tensor, filters: int) -> tuple[None, Tensor]:
    """A projection of 4x4 patches that do not overlap (Vaswani et al. 2021, appendix C.3)."""
    return None, builder.conv_norm(x, filters, 4, 4, "stem")


def strided_shortcut(
    builder: LayerBuilder, x: Tensor, filters: int, strides: int, name: str
) -> Tensor:
    """A strided 1x1 convolution (He et al. 2016)."""
    return builder.conv_norm(x, filters, 1, strides, name)


def pooled_shortcut(
    builder: LayerBuilder, x: Tensor, filters: int, strides: int, name: str
) -> Tensor:
    """A 2x2 average-pool before a 1x1 convolution, so that no position is skipped (ResNet-D)."""
    if strides > 1:
        x = compat.AveragePooling2D(2, strides, "same", name=f"{name}_pool")(x)
    return strided_shortcut(builder, x, filters, 1, name)


def no_shortcut(
    builder: LayerBuilder, x: Tensor, filters: int, strides: int, name: str
) -> None:
    """None: the first block of a stage has no residual (RegNetZ in timm)."""
    return


def activated_sum(
    builder: LayerBuilder, x: Tensor, residual: Tensor, name: str
) -> Tensor:
    """The sum of a block's output and its residual, activated (ResNet)."""
    return builder.act(compat.Add(name=f"{name}_add")([x, residual]), f"{name}_act")


def linear_sum(
    builder: LayerBuilder, x: Tensor, residual: Tensor | None, name: str
) -> Tensor:
    """The sum of a block's output and its residual, if there is one (RegNetZ)."""
    return x if residual is None else compat.Add(name=f"{name}_add")([x, residual])


@dataclasses.dataclass(frozen=True)
class Stem:
    """The layers before the first stage.

    Attributes:
      build: makes them: `build(builder, images, filters)` returns the last map at stride 2, or None if there
        is none, and the output.
      filters: the channels of their output.
      strides: the factor by which they reduce the resolution; the first stage brings it to 4.
    """

    build: Callable[[LayerBuilder, Any, int], tuple[Any, Any]]
    filters: int = 64
    strides: int = 4


@dataclasses.dataclass(frozen=True)
class Bottleneck:
    """A kind of residual block: 1x1 convolution, spatial operation, 1x1 convolution.

    Attributes:
      operation: the spatial operation.
      shortcut: makes the residual of the first block of a stage.
      merge: joins the output with the residual.
      channel_attention: what follows the spatial operation, normalized and activated, if anything:
        `channel_attention(builder, x, name)` returns a map of the same shape.
      post_block: the same for what follows the whole block.
    """

    operation: SpatialOperation = Convolution()
    shortcut: Callable[..., Any] = pooled_shortcut
    merge: Callable[..., Any] = activated_sum
    channel_attention: Callable[[LayerBuilder, Any, str], Any] | None = None
    post_block: Callable[[LayerBuilder, Any, str], Any] | None = None

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> Tensor:
        """Builds a block of this kind: [b, h, w, c] -> [b, h/s, w/s, output_filters]."""
        name = context.name
        residual = x
        outputs = context.output_filters
        if context.index == 1:
            residual = self.shortcut(
                builder, x, outputs, context.strides, f"{name}_shortcut"
            )
        # [b, h, w, filters]
        x = builder.conv_norm_act(x, context.filters, 1, 1, f"{name}_reduce")
        x = self.operation(builder, x, context)  # [b, h/s, w/s, filters]
        x = builder.norm_act(x, f"{name}_spatial")
        if self.channel_attention:
            x = self.channel_attention(builder, x, f"{name}_gate")
        # [b, h/s, w/s, outputs]
        x = builder.convolution(x, outputs, 1, 1, f"{name}_expand_conv")
        use_se = bool(context.se_ratio)
        is_residual = residual is not None
        x = builder.norm(x, f"{name}_expand_norm", zero=is_residual, pooled=use_se)
        if use_se:
            x = SqueezeExcite(
                context.se_ratio, builder.kernel_regularizer, name=f"{name}_se"
            )(x)
        if context.drop_rate and is_residual:
            x = StochasticDepth(context.drop_rate, name=f"{name}_drop")(x)
        x = self.merge(builder, x, residual, name)
        return self.post_block(builder, x, f"{name}_addition") if self.post_block else x


@dataclasses.dataclass(frozen=True)
class ResNet(Architecture):
    """A network of the residual family, as data.

    Attributes:
      stages: for each of c2 ... c5 a string with one letter per block.
      blocks: the kind of block for each letter.
      stem: the layers before the first stage.
      filters: the width of the bottleneck in each stage; a pair has the first block's and the others'.
      output_filters: the channels of the blocks' outputs in each stage.
      se_ratios: the ratio of squeeze-and-excitation in each stage; 0 for none.
      head_filters: the width of a 1x1 convolution before the classifier; 0 for none.
      activation: the activation, where the caller gives none.
      symmetric_padding: see `LayerBuilder`.
    """

    stages: tuple[str, ...]
    source: str
    input_size: int = 224
    blocks: Mapping[str, Bottleneck] = dataclasses.field(
        default_factory=lambda: {"C": Bottleneck()}
    )
    stem: Stem = Stem(rs_stem)
    filters: tuple[int | tuple[int, int], ...] = FILTERS
    output_filters: tuple[int, ...] = (256, 512, 1024, 2048)
    se_ratios: tuple[float, ...] = (0, 0, 0, 0)
    head_filters: int = 0
    activation: str = "relu"
    symmetric_padding: bool = False

    def option_names(self) -> set[str]:
        letters = set("".join(self.stages))
        return set().union(
            *(self.blocks[letter].operation.option_names() for letter in letters)
        )

    def endpoints(
        self,
        images: Tensor,
        builder: LayerBuilder,
        stochastic_depth_rate: float = 0.0,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Builds the trunk; stage c_i has the drop rate `rate * i / 5`, as in the authors' ResNet-RS code."""
        builder = builder.for_network(self.activation, self.symmetric_padding)
        blocks = {
            letter: dataclasses.replace(
                block, operation=block.operation.with_options(overrides)
            )
            for letter, block in self.blocks.items()
        }
        half, x = self.stem.build(builder, images, self.stem.filters)
        endpoints = {} if half is None else {"1": half}
        finer = FinerMaps(builder.output_stride, self.stem.strides)
        for letter, context in self._contexts(stochastic_depth_rate):
            x = finer.before_block(x, context.strides, context.name)
            x = blocks[letter](builder, x, context)
            finer.after_block(x, str(context.stage + 2))
        return endpoints | finer.endpoints()

    def embedding(
        self,
        endpoints: dict[str, Any],
        builder: LayerBuilder,
        pooling: str | None = "avg",
    ) -> Tensor:
        x = endpoints["5"]
        builder = builder.for_network(self.activation, self.symmetric_padding)
        if self.head_filters:
            x = builder.conv_norm_act(x, self.head_filters, 1, 1, "final")
        return builder.pool(x, pooling)

    def _contexts(
        self, stochastic_depth_rate: float
    ) -> Iterator[tuple[str, BlockContext]]:
        """Yields the letter and the context of each block, in order."""
        map_size = ceil_div(self.input_size, self.stem.strides)
        for stage, letters in enumerate(self.stages):
            level = stage + 2
            widths = self.filters[stage]
            first, others = widths if isinstance(widths, tuple) else (widths, widths)
            for index, letter in enumerate(letters, start=1):
                strides = 1
                if index == 1:
                    strides = 2 if stage else 4 // self.stem.strides
                context = BlockContext(
                    name=f"c{level}_block{index}",
                    stage=stage,
                    index=index,
                    filters=first if index == 1 else others,
                    output_filters=self.output_filters[stage],
                    strides=strides,
                    map_size=map_size,
                    se_ratio=self.se_ratios[stage],
                    drop_rate=stochastic_depth_rate * level / 5,
                )
                yield letter, context
                map_size = ceil_div(map_size, strides)


def repeat(letters: str, depths: tuple[int, ...]) -> tuple[str, ...]:
    """Returns stages of one letter each: ("CL", (3, 4)) -> ("CCC", "LLLL")."""
    return tuple(letter * depth for letter, depth in zip(letters, depths, strict=True))
