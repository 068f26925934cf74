# SPDX-License-Identifier: Apache-2.0
"""HaloNets (Vaswani et al. 2021), their hybrids with convolutions, and halo ResNets for detection.

The trunk is ResNet's with HaloAttention instead of 3x3 convolutions: widths of 64 to 512 with
4, 8, 8 and 8 heads, outputs of r_b times the width, values of r_v times. A block that downsamples keeps every
second query. Maps that do not divide into blocks are padded, so images may have any size.

The appendix gives hybrids squeeze-and-excitation in their convolution blocks, except in Table A3; the ratio
is the 1/8 that it states for detection.
"""

from functools import partial
from typing import Any

from lambdanet.layers.halo_attention import HaloAttention
from lambdanet.models.resnet import (
    FILTERS,
    Bottleneck,
    ResNet,
    Stem,
    patch_stem,
    repeat,
    strided_shortcut,
    vanilla_stem,
)
from lambdanet.models.spatial_ops import LayerOperation, per_stage

# Table A2: image size s, block b, halo h, value ratio r_v, bottleneck ratio r_b, blocks in the third stage
# l_3, and width d_f of the final convolution.
FAMILY = {
    "h0": (256, 8, 3, 1.0, 0.5, 7, 0),
    "h1": (256, 8, 3, 1.0, 1.0, 10, 0),
    "h2": (256, 8, 3, 1.0, 1.25, 11, 0),
    "h3": (320, 10, 3, 1.0, 1.5, 12, 1024),
    "h4": (384, 12, 2, 1.0, 3.0, 12, 1280),
    "h5": (448, 14, 2, 2.5, 2.0, 23, 1536),
    "h6": (512, 8, 4, 3.0, 2.75, 24, 1536),
    "h7": (600, 10, 3, 4.0, 3.5, 26, 2048),
}
SE_RATIO = 1 / 8
DETECTION_DEPTHS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def _blocks(**options: Any) -> dict[str, Bottleneck]:
    attention = LayerOperation(HaloAttention, options, pool_size=0)
    return {
        "C": Bottleneck(shortcut=strided_shortcut),
        "H": Bottleneck(attention, shortcut=strided_shortcut),
    }


HEADS = per_stage(4, 8, 8, 8)
Halo = partial(ResNet, blocks=_blocks(), stem=Stem(vanilla_stem))
# H4 of twice the width, with one more layer in the second stage and no final convolution (appendix C.3).
Wide = partial(
    Halo,
    input_size=384,
    blocks=_blocks(block_size=12, halo_size=2, num_heads=HEADS),
    filters=(128, 256, 512, 1024),
    output_filters=(512, 1024, 2048, 4096),
)


def _family(name: str, conv_stages: int = 0) -> ResNet:
    size, block, halo, value_ratio, bottleneck_ratio, l3, final = FAMILY[name]
    letters = "C" * conv_stages + "H" * (4 - conv_stages)
    return Halo(
        repeat(letters, (3, 3, l3, 3)),
        "HaloNet, figure A1" if conv_stages else "HaloNet, Table A2",
        input_size=size,
        blocks=_blocks(
            block_size=block, halo_size=halo, value_ratio=value_ratio, num_heads=HEADS
        ),
        output_filters=tuple(round(bottleneck_ratio * filters) for filters in FILTERS),
        se_ratios=tuple(SE_RATIO if letter == "C" else 0 for letter in letters),
        head_filters=final,
    )


MODELS = {
    **{f"halonet_{name}": _family(name) for name in FAMILY},
    **{
        f"halonet_h4_{name}": _family("h4", len(name) - 1)
        for name in ("c1", "c12", "c123")
    },
    "halonet_h4_base128": Wide(repeat("HHHH", (3, 4, 12, 3)), "HaloNet, Table A3"),
    "halonet_h4_base128_patch": Wide(
        repeat("HHHH", (3, 4, 12, 3)),
        "HaloNet, Table A3, 4x4 patches",
        stem=Stem(patch_stem),
    ),
    "halonet_h4_base128_c12": Wide(
        repeat("CCHH", (3, 4, 12, 3)), "HaloNet, Table A3, Conv-12"
    ),
    **{
        f"resnet_{depth}_se_8": Halo(
            repeat("CCCC", depths),
            "HaloNet, Table A4, baseline",
            input_size=512,
            se_ratios=(SE_RATIO,) * 4,
        )
        for depth, depths in DETECTION_DEPTHS.items()
    },
    **{
        f"halo_resnet_{depth}": Halo(
            repeat("CCCH", depths),
            "HaloNet, Table A4; block_size=32 for the larger one",
            input_size=512,
            se_ratios=(SE_RATIO, SE_RATIO, SE_RATIO, 0),
        )
        for depth, depths in DETECTION_DEPTHS.items()
    },
}
