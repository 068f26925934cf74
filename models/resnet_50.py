# SPDX-License-Identifier: Apache-2.0
"""ResNet-50s of the ablation studies (Bello 2021): convolutions, lambda layers or attention in four stages.

Tables 8 to 11 vary options of the lambda layer, such as `create_model("resnet_50_llll", key_dim=8)`. Table 10
says that lambda layers replace the last two stages, but its FLOPs fit three, "resnet_50_clll".
"""

from functools import partial

from lambdanet.backend import Tensor, compat, keras
from lambdanet.backend.tensors import ceil_div
from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.halo_attention import LocalAttention
from lambdanet.models import spatial_ops
from lambdanet.models.layer_builder import LayerBuilder
from lambdanet.models.resnet import (
    Bottleneck,
    ResNet,
    Stem,
    repeat,
    strided_shortcut,
    vanilla_stem,
)
from lambdanet.models.spatial_ops import (
    Convolution,
    LambdaOperation,
    LayerOperation,
    SpatialOperation,
)


class AugmentedConvolution(SpatialOperation):
    """A convolution beside global attention, which gives a tenth of the channels (Bello et al. 2019).

    That tenth is rounded to a multiple of the 8 heads, of 20 query channels each; a 1x1 convolution mixes
    them. Where the block downsamples, a 3x3 average-pool precedes the attention.
    """

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: spatial_ops.BlockContext
    ) -> Tensor:
        name = f"{context.name}_spatial"
        strides = context.strides
        filters = 8 * round(context.filters / 80)
        convolved = builder.convolution(
            x, context.filters - filters, 3, strides, f"{name}_conv"
        )
        if strides > 1:
            x = compat.AveragePooling2D(3, strides, "same", name=f"{name}_pool")(x)
        attention = GlobalAttention(
            filters,
            key_dim=20,
            map_size=ceil_div(context.map_size, strides)
            if None in x.shape[1:3]
            else None,
            kernel_regularizer=builder.kernel_regularizer,
            name=f"{name}_attention",
        )
        x = builder.convolution(attention(x), filters, 1, 1, f"{name}_heads")
        return keras.layers.Concatenate(name=f"{name}_concat")([convolved, x])


def double_attention(builder: LayerBuilder, x: Tensor, name: str) -> Tensor:
    """Linear attention beside the identity (Chen et al. 2018): one head, of half the channels."""
    channels = x.shape[-1]
    attention = LinearAttention(
        channels // 2,
        num_heads=1,
        kernel_regularizer=builder.kernel_regularizer,
        name=f"{name}_attention",
    )
    y = builder.convolution(attention(x), channels, 1, 1, f"{name}_expand")
    y = builder.norm(y, f"{name}_norm", zero=True)
    return compat.Add(name=f"{name}_add")([x, y])


Block = partial(Bottleneck, shortcut=strided_shortcut)
BLOCKS = {
    "C": Block(Convolution()),
    "D": Block(Convolution(), post_block=double_attention),
    "A": Block(AugmentedConvolution()),
    "W": Block(LayerOperation(LocalAttention)),  # W for its windows
    "X": Block(LayerOperation(AxialAttention, fixed_map=True)),
    "G": Block(LayerOperation(GlobalAttention, fixed_map=True)),
    "L": Block(LambdaOperation()),
}
Vanilla = partial(ResNet, blocks=BLOCKS, stem=Stem(vanilla_stem))


def stages(letters: str) -> tuple[str, ...]:
    """Returns the blocks of a ResNet-50: "CCCL" -> ("CCC", "CCCC", "CCCCCC", "LLL")."""
    return repeat(letters, (3, 4, 6, 3))


MODELS = {
    "resnet_50": Vanilla(stages("CCCC"), "Table 3, convolution; Table 12"),
    "resnet_50_se": Vanilla(
        stages("CCCC"), "Table 3, channel attention", se_ratios=(1 / 16,) * 4
    ),
    "resnet_50_linear_attention": Vanilla(
        ("CCC", "CDCD", "CDCDCD", "CCC"), "Table 3, linear attention (Chen et al. 2018)"
    ),
    "resnet_50_augmented": Vanilla(
        stages("CAAA"), "Table 3, relative self-attention (Bello et al. 2019)"
    ),
    "resnet_50_local_attention": Vanilla(
        stages("WWWW"), "Tables 3, 4, local self-attention"
    ),
    "resnet_50_axial_attention": Vanilla(
        stages("XXXX"), "Table 4, axial self-attention"
    ),
    "resnet_50_global_attention": Vanilla(
        stages("GGGG"), "Table 4, global self-attention"
    ),
    "resnet_50_lccc": Vanilla(stages("LCCC"), "Table 12"),
    "resnet_50_llcc": Vanilla(stages("LLCC"), "Table 12"),
    "resnet_50_lllc": Vanilla(stages("LLLC"), "Table 12"),
    "resnet_50_llll": Vanilla(
        stages("LLLL"), "Table 3, lambda layer; Tables 4, 8, 9, 11, 12"
    ),
    "resnet_50_clll": Vanilla(stages("CLLL"), "Tables 10, 12"),
    "resnet_50_ccll": Vanilla(stages("CCLL"), "Table 12"),
    "resnet_50_cccl": Vanilla(stages("CCCL"), "Table 12"),
}
