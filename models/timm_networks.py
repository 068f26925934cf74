# SPDX-License-Identifier: Apache-2.0
"""timm's networks with lambda, halo and bottleneck-attention layers, for which it has ImageNet weights.

They have timm's names and its architectures, weight for weight; `lambdanet.models.weights.timm_rules`
maps its tensors to variables. They differ from the papers' networks:

* Strided convolutions and max-pools are padded as in PyTorch, equally on both sides.
* The stem has three 3x3 convolutions; shortcuts are strided 1x1 convolutions; the layer of a strided block is
  followed by a 2x2 average-pool, or (halo layers of even blocks) computes only every second query.
* Lambda layers have a scope of 9 or 13 and a bias of the position lambda; in `26rpt` a table for the whole
  map.
* Halo layers do not mask positions outside the map, and add an embedding for height to one for width.
* Channel attention, if any, follows the 3x3 convolution; blocks with other layers have none.

The names: 26, 33 and 50 count layers, t is the stem, s the activation SiLU, x are grouped convolutions.
Networks with bottleneck attention (`bot`) or `26rpt` have tables for maps of images of `input_size`; smaller
images use a part of them.
"""

from functools import partial
from typing import Any

from lambdanet.backend import Tensor
from lambdanet.layers.attention import GlobalAttention
from lambdanet.layers.centered_max_pooling import CenteredMaxPooling2D
from lambdanet.layers.channel_attention import EfficientChannelAttention, SqueezeExcite
from lambdanet.layers.halo_attention import HaloAttention
from lambdanet.models.layer_builder import LayerBuilder
from lambdanet.models.resnet import (
    Bottleneck,
    ResNet,
    Stem,
    linear_sum,
    no_shortcut,
    strided_shortcut,
)
from lambdanet.models.spatial_ops import (
    Convolution,
    LambdaOperation,
    LayerOperation,
    PerBlock,
    per_stage,
)


def tiered_stem(
    builder: LayerBuilder, x: Tensor, filters: int, last_strides: int = 2
) -> tuple[Tensor, Tensor]:
    """3x3 convolutions of 3/8, 1/2 and all of the filters, first and last strided; see `Stem.build`."""
    x = builder.conv_norm_act(x, 3 * filters // 8, 3, 2, "stem1")
    # [b, h/2, w/2, filters / 2]
    half = builder.conv_norm_act(x, filters // 2, 3, 1, "stem2")
    return half, builder.conv_norm_act(half, filters, 3, last_strides, "stem3")


def pooled_tiered_stem(
    builder: LayerBuilder, x: Tensor, filters: int
) -> tuple[Tensor, Tensor]:
    """The same with a max-pool instead of the last stride."""
    _, half = tiered_stem(builder, x, filters, last_strides=1)  # [b, h/2, w/2, filters]
    return half, CenteredMaxPooling2D(name="stem_pool")(half)


def single_stem(
    builder: LayerBuilder, x: Tensor, filters: int
) -> tuple[Tensor, Tensor]:
    """One strided 3x3 convolution (RegNet); its output [b, h/2, w/2, filters] is the map at stride 2."""
    half = builder.conv_norm_act(x, filters, 3, 2, "stem")
    return half, half


def squeeze_excite(ratio: float, builder: LayerBuilder, x: Tensor, name: str) -> Tensor:
    """Squeeze-and-excitation with a hidden width that is a multiple of 8."""
    return SqueezeExcite(ratio, builder.kernel_regularizer, multiple_of=8, name=name)(x)


def efficient_channel_attention(builder: LayerBuilder, x: Tensor, name: str) -> Tensor:
    """A gate per channel from the channels next to it, without a hidden layer."""
    return EfficientChannelAttention(
        kernel_regularizer=builder.kernel_regularizer, name=name
    )(x)


Block = partial(Bottleneck, shortcut=strided_shortcut)


def lambda_block(scope: int | None = 9, position_bias: bool = True) -> Bottleneck:
    """A lambda layer, and a 2x2 average-pool where the block is strided."""
    options = {"scope": scope, "position_bias": position_bias}
    return Block(LambdaOperation(options=options, pool_size=2))


def halo_block(pool_size: int = 0, block: Any = Block, **options: Any) -> Bottleneck:
    """Blocks of 8 with halos of 3, the layer's defaults."""
    options = {
        "positions": "added",
        "mask_padding": False,
        "compact_offsets": True,
        **options,
    }
    return block(LayerOperation(HaloAttention, options, pool_size))


def attention_block(**options: Any) -> Bottleneck:
    """Attention to the whole map, with 4 heads, and the same pool."""
    operation = LayerOperation(
        GlobalAttention, {"num_heads": 4, **options}, pool_size=2, fixed_map=True
    )
    return Block(operation)


BLOCKS = {"C": Block(), "L": lambda_block(), "H": halo_block(), "B": attention_block()}
SE_BLOCKS = {**BLOCKS, "C": Block(channel_attention=partial(squeeze_excite, 1 / 16))}
ECA_BLOCKS = {
    **BLOCKS,
    "C": Block(Convolution(16), channel_attention=efficient_channel_attention),
}
# RegNetZ: no residual in the first block of a stage, and linear outputs.
RegNetBlock = partial(Bottleneck, shortcut=no_shortcut, merge=linear_sum)

Tiered = partial(
    ResNet,
    input_size=256,
    blocks=BLOCKS,
    stem=Stem(pooled_tiered_stem),
    activation="swish",
    symmetric_padding=True,
)
# c5 is narrower, and a convolution precedes the classifier.
Tiered33 = partial(
    Tiered,
    blocks=SE_BLOCKS,
    stem=Stem(tiered_stem),
    output_filters=(256, 512, 1024, 1536),
    head_filters=1280,
)

MODELS = {
    "lambda_resnet26t": Tiered(("CC", "CC", "CL", "LL"), "timm", activation="relu"),
    "lambda_resnet26rpt_256": Tiered(
        ("CC", "CC", "CL", "LL"),
        "timm, relative positions over the whole map",
        blocks={**BLOCKS, "L": lambda_block(scope=None, position_bias=False)},
        activation="relu",
    ),
    "lambda_resnet50ts": Tiered(("CCC", "CCCL", "CLCLCL", "CLC"), "timm"),
    "lamhalobotnet50ts_256": Tiered(
        ("CCC", "CLCL", "CHCHCH", "CBC"),
        "timm",
        blocks={**BLOCKS, "L": lambda_block(scope=13), "H": halo_block(pool_size=2)},
        stem=Stem(tiered_stem),
    ),
    "halo2botnet50ts_256": Tiered(
        ("CCC", "CHCH", "CHCHCH", "CBC"),
        "timm",
        blocks={**BLOCKS, "H": halo_block(pool_size=2)},
        stem=Stem(tiered_stem),
    ),
    "halonet26t": Tiered(
        ("CC", "CC", "CH", "HH"),
        "timm",
        blocks={**BLOCKS, "H": halo_block(halo_size=2)},
        activation="relu",
    ),
    "halonet50ts": Tiered(
        ("CCC", "CCCH", "CHCHCH", "CHC"),
        "timm",
        blocks={**BLOCKS, "H": halo_block(num_heads=per_stage(8, 4, 8, 8))},
    ),
    "sehalonet33ts": Tiered33(("CC", "CCH", "CCH", "HH"), "timm"),
    "eca_halonext26ts": Tiered(
        ("CC", "CC", "CH", "HH"),
        "timm",
        blocks={**ECA_BLOCKS, "H": halo_block(halo_size=2, key_dim=16)},
    ),
    "haloregnetz_b": Tiered(
        ("CC", "CCCCCC", "CCCHCCCHCCCH", "HH"),
        "timm, RegNetZ (Dollar et al. 2021)",
        input_size=224,
        blocks={
            "C": RegNetBlock(
                Convolution(16), channel_attention=partial(squeeze_excite, 1 / 4)
            ),
            # The queries of all heads have a third of the channels: 24 in a head, and 36 where there are 864.
            "H": halo_block(
                pool_size=2,
                block=RegNetBlock,
                block_size=7,
                halo_size=2,
                key_dim=PerBlock(lambda context: context.filters // 24),
            ),
        },
        stem=Stem(single_stem, 32, strides=2),
        # Three times the channels that a block reads.
        filters=((96, 144), (144, 288), (288, 576), (576, 864)),
        output_filters=(48, 96, 192, 288),
        head_filters=1536,
    ),
    "botnet26t_256": Tiered(("CC", "CC", "CB", "BB"), "timm", activation="relu"),
    "sebotnet33ts_256": Tiered33(("CC", "CCB", "CCB", "BB"), "timm"),
    "eca_botnext26ts_256": Tiered(
        ("CC", "CC", "CB", "BB"),
        "timm",
        blocks={**ECA_BLOCKS, "B": attention_block(key_dim=16)},
    ),
}
