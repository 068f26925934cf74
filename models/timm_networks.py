# SPDX-License-Identifier: Apache-2.0
"""The networks of timm with lambda, halo and bottleneck-attention layers, for which it has ImageNet weights.

They have timm's names and its architectures, weight for weight; `lambdanet.models.weights.timm_rules` says
which of its tensors is which variable. What they have in common, and differ in from the papers:

* Paddings are those of PyTorch, alike on both sides, also where a convolution or max-pool has strides.
* The stem has three 3x3 convolutions; shortcuts are strided 1x1 convolutions; the layer of a strided block is
  followed by a 2x2 average-pool, or (halo layers of even blocks) computes only every second query.
* Lambda layers have a scope of 9 or 13 and a bias of the position lambda; in `26rpt` a table for all the map.
* Halo layers do not mask what lies outside the map, and add an embedding for height to one for width.
* Channel attention, where there is any, follows the 3x3 convolution; blocks with other layers have none.

The names: 26, 33 and 50 count layers, t is the stem, s the activation SiLU, x are grouped convolutions.
Networks with bottleneck attention (`bot`) or `26rpt` have tables for maps of images of `input_size`; smaller
images use a part of them.
"""

import dataclasses
from functools import partial

import tf_keras as keras

from lambdanet.layers.attention import GlobalAttention
from lambdanet.layers.centered_max_pooling import CentredMaxPooling2D
from lambdanet.layers.efficient_channel_attention import EfficientChannelAttention
from lambdanet.layers.halo_attention import HaloAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.squeeze_excite import SqueezeExcite
from lambdanet.models.layer_builder import Parts
from lambdanet.models.resnet import ResNet, linear_sum, no_shortcut, strided_shortcut
from lambdanet.models.spatial_ops import PerBlock, PerStage, grouped_convolution

GROUP_SIZE = 16
SE_RATIO = 1 / 16


class SymmetricParts(Parts):
    """Parts whose strided convolutions are padded alike on both sides, as in PyTorch."""

    def padded(self, x, kernel_size, strides, name):
        if kernel_size == 1 or strides == 1:
            return x, "same"  # pads alike on both sides, too
        return keras.layers.ZeroPadding2D(kernel_size // 2, name=f"{name}_padding")(x), "valid"


def symmetric(activation: str, parts: Parts) -> Parts:
    """Makes symmetric parts of others; their activation, if they have none."""
    given = {field.name: getattr(parts, field.name) for field in dataclasses.fields(parts)}
    return SymmetricParts(**{**given, "activation": parts.activation or activation})


def tiered_stem(parts: Parts, x, filters: int, last_strides: int = 2):
    """3x3 convolutions of 3/8, 1/2 and all of the filters, first and last strided: -> [b, h/4, w/4, f]."""
    x = parts.conv_norm_act(x, 3 * filters // 8, 3, 2, "stem1")
    x = parts.conv_norm_act(x, filters // 2, 3, 1, "stem2")
    return parts.conv_norm_act(x, filters, 3, last_strides, "stem3")


def pooled_tiered_stem(parts: Parts, x, filters: int):
    """The same with a max-pool in the place of the last stride."""
    return CentredMaxPooling2D(name="stem_pool")(tiered_stem(parts, x, filters, last_strides=1))


def single_stem(parts: Parts, x, filters: int):
    """One strided 3x3 convolution (RegNet): -> [b, h/2, w/2, filters]."""
    return parts.conv_norm_act(x, filters, 3, 2, "stem")


def squeeze_excite(ratio: float, parts: Parts, x, name: str):
    """Squeeze-and-excitation with a hidden width that is a multiple of 8."""
    return SqueezeExcite(ratio, parts.kernel_regularizer, multiple_of=8, name=name)(x)


def efficient_channel_attention(parts: Parts, x, name: str):
    return EfficientChannelAttention(kernel_regularizer=parts.kernel_regularizer, name=name)(x)


LAMBDA = {"scope": 9, "position_bias": True}
# Blocks of 8 with halos of 3, the layer's defaults.
HALO = {"positions": "added", "mask_padding": False, "compact_offsets": True}
BOTTLENECK = {"num_heads": 4}
EFFICIENT = {
    "gates": {"C": efficient_channel_attention},
    "operations": {"C": grouped_convolution(GROUP_SIZE)},
}

relu, silu = partial(symmetric, "relu"), partial(symmetric, "swish")
Tiered = partial(
    ResNet, input_size=256, stem=pooled_tiered_stem, shortcut=strided_shortcut, pool_size=2, dress=silu
)
Lambda = partial(Tiered, layers={"L": LambdaLayer}, options={"L": LAMBDA})
Halo = partial(Tiered, layers={"H": HaloAttention}, options={"H": HALO}, pool_size=0)
Bottleneck = partial(Tiered, layers={"B": GlobalAttention}, options={"B": BOTTLENECK})
# c5 is narrower; squeeze-and-excitation, and a convolution before the classifier.
OF_33 = {
    "stem": tiered_stem,
    "gates": {"C": partial(squeeze_excite, SE_RATIO)},
    "expansion": PerStage((4, 4, 4, 3)),
    "final_filters": 1280,
}

MODELS = {
    "lambda_resnet26t": Lambda(("CC", "CC", "CL", "LL"), "timm", dress=relu),
    "lambda_resnet26rpt_256": Lambda(
        ("CC", "CC", "CL", "LL"),
        "timm, relative positions over the whole map",
        options={"L": {"scope": None}},
        dress=relu,
    ),
    "lambda_resnet50ts": Lambda(("CCC", "CCCL", "CLCLCL", "CLC"), "timm"),
    "lamhalobotnet50ts_256": Tiered(
        ("CCC", "CLCL", "CHCHCH", "CBC"),
        "timm",
        layers={"L": LambdaLayer, "H": HaloAttention, "B": GlobalAttention},
        options={"L": {**LAMBDA, "scope": 13}, "H": HALO, "B": BOTTLENECK},
        stem=tiered_stem,
    ),
    "halo2botnet50ts_256": Tiered(
        ("CCC", "CHCH", "CHCHCH", "CBC"),
        "timm",
        layers={"H": HaloAttention, "B": GlobalAttention},
        options={"H": HALO, "B": BOTTLENECK},
        stem=tiered_stem,
    ),
    "halonet26t": Halo(("CC", "CC", "CH", "HH"), "timm", options={"H": {**HALO, "halo_size": 2}}, dress=relu),
    "halonet50ts": Halo(
        ("CCC", "CCCH", "CHCHCH", "CHC"),
        "timm",
        options={"H": {**HALO, "num_heads": PerStage((8, 4, 8, 8))}},
    ),
    "sehalonet33ts": Halo(("CC", "CCH", "CCH", "HH"), "timm", **OF_33),
    "eca_halonext26ts": Halo(
        ("CC", "CC", "CH", "HH"),
        "timm",
        options={"H": {**HALO, "halo_size": 2, "key_dim": 16}},
        **EFFICIENT,
    ),
    "haloregnetz_b": Halo(
        ("CC", "CCCCCC", "CCCHCCCHCCCH", "HH"),
        "timm, RegNetZ (Dollar et al. 2021)",
        input_size=224,
        # The queries of all heads have a third of the channels: 24 in a head, and 36 where there are 864.
        options={
            "H": {**HALO, "block_size": 7, "halo_size": 2, "key_dim": PerBlock(lambda at: at.filters // 24)}
        },
        operations={"C": grouped_convolution(GROUP_SIZE)},
        gates={"C": partial(squeeze_excite, 1 / 4)},
        pool_size=2,
        stem=single_stem,
        shortcut=no_shortcut,
        end=linear_sum,
        strides=(2, 2, 2, 2),
        # Three times the channels that a block reads.
        first_filters=(96, 144, 288, 576),
        filters=(144, 288, 576, 864),
        expansion=1 / 3,
        stem_filters=32,
        final_filters=1536,
    ),
    "botnet26t_256": Bottleneck(("CC", "CC", "CB", "BB"), "timm", dress=relu),
    "sebotnet33ts_256": Bottleneck(("CC", "CCB", "CCB", "BB"), "timm", **OF_33),
    "eca_botnext26ts_256": Bottleneck(
        ("CC", "CC", "CB", "BB"), "timm", options={"B": {**BOTTLENECK, "key_dim": 16}}, **EFFICIENT
    ),
}
