# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 of the studies (Bello 2021): convolutions, lambda layers or attention in its four stages.

Tables 8 to 11 vary options of the lambda layer, such as `create_model("resnet_50_llll", key_dim=8)`. Table 10
says that it replaces the last two stages; its FLOPs are those of the last three, "resnet_50_clll".
"""

from functools import partial

import tf_keras as keras

from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.halo_attention import LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.models.layer_builder import Parts
from lambdanet.models.resnet import ResNet, strided_shortcut, vanilla_stem
from lambdanet.models.spatial_ops import Operation, Place, convolution

DEPTHS = (3, 4, 6, 3)

Vanilla = partial(ResNet, stem=vanilla_stem, shortcut=strided_shortcut)
Lambda = partial(Vanilla, layers={"L": LambdaLayer})


def pattern(letters: str) -> tuple[str, ...]:
    """Repeats the letter of each stage over its blocks: "CCCL" -> ("CCC", "CCCC", "CCCCCC", "LLL")."""
    return tuple(letter * depth for letter, depth in zip(letters, DEPTHS, strict=True))


def augmented_convolution(parts: Parts) -> Operation:
    """A convolution beside global attention, which gives a tenth of the channels (Bello et al. 2019).

    That tenth is rounded to a multiple of the 8 heads, of 20 query channels each; a 1x1 convolution mixes
    them. Where the block downsamples, so does a 3x3 average-pool before the attention.
    """

    def apply(x, place: Place):
        filters = 8 * round(place.filters / 80)
        convolved = parts.convolution(x, place.filters - filters, 3, place.strides, f"{place.name}_conv")
        if place.strides > 1:
            x = keras.layers.AveragePooling2D(3, place.strides, "same", name=f"{place.name}_pool")(x)
        map_size = -(-place.side // place.strides) if None in x.shape[1:3] else None
        x = GlobalAttention(
            filters,
            key_dim=20,
            map_size=map_size,
            kernel_regularizer=parts.kernel_regularizer,
            name=f"{place.name}_attention",
        )(x)
        x = parts.convolution(x, filters, 1, 1, f"{place.name}_heads")
        return keras.layers.Concatenate(name=f"{place.name}_concat")([convolved, x])

    return apply


def double_attention(parts: Parts, x, name: str):
    """Linear attention beside the identity (Chen et al. 2018): one head, of half the channels."""
    channels = x.shape[-1]
    attention = LinearAttention(
        channels // 2, num_heads=1, kernel_regularizer=parts.kernel_regularizer, name=f"{name}_attention"
    )
    y = parts.convolution(attention(x), channels, 1, 1, f"{name}_expand")
    return keras.layers.Add(name=f"{name}_add")([x, parts.norm(y, f"{name}_norm", zero=True)])


MODELS = {
    "resnet_50": Vanilla(pattern("CCCC"), "Table 3, convolution; Table 12"),
    "resnet_50_se": Vanilla(pattern("CCCC"), "Table 3, channel attention", se_ratios=(1 / 16,) * 4),
    "resnet_50_linear_attention": Vanilla(
        ("CCC", "CDCD", "CDCDCD", "CCC"),
        "Table 3, linear attention (Chen et al. 2018)",
        operations={"D": convolution},
        additions={"D": double_attention},
    ),
    "resnet_50_augmented": Vanilla(
        pattern("CAAA"),
        "Table 3, relative self-attention (Bello et al. 2019)",
        operations={"A": augmented_convolution},
    ),
    "resnet_50_local_attention": Vanilla(
        pattern("AAAA"), "Tables 3, 4, local self-attention", layers={"A": LocalAttention}
    ),
    "resnet_50_axial_attention": Vanilla(
        pattern("AAAA"), "Table 4, axial self-attention", layers={"A": AxialAttention}
    ),
    "resnet_50_global_attention": Vanilla(
        pattern("AAAA"), "Table 4, global self-attention", layers={"A": GlobalAttention}
    ),
    "resnet_50_lccc": Lambda(pattern("LCCC"), "Table 12"),
    "resnet_50_llcc": Lambda(pattern("LLCC"), "Table 12"),
    "resnet_50_lllc": Lambda(pattern("LLLC"), "Table 12"),
    "resnet_50_llll": Lambda(pattern("LLLL"), "Table 3, lambda layer; Tables 4, 8, 9, 11, 12"),
    "resnet_50_clll": Lambda(pattern("CLLL"), "Tables 10, 12"),
    "resnet_50_ccll": Lambda(pattern("CCLL"), "Table 12"),
    "resnet_50_cccl": Lambda(pattern("CCCL"), "Table 12"),
}
