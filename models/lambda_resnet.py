# SPDX-License-Identifier: Apache-2.0
"""LambdaResNets (Bello 2021, Table 19): ResNet-RS with lambda layers in c4 and c5.

The blocks of c4 that the table lists are counted from 1, the strided one. Only c2 and c3 have
squeeze-and-excitation: with this placement, the sizes are as in Table 13. Table 16 names the last two
stages, but its FLOPs fit lambda layers in the last three.
"""

from collections.abc import Collection
from functools import partial

from lambdanet.models.resnet import Bottleneck, ResNet, Stem, rs_stem
from lambdanet.models.resnet_rs import DEPTHS, INPUT_SIZES
from lambdanet.models.spatial_ops import LambdaOperation

# Table 19: the blocks of c4 that have a lambda layer.
C4_LAMBDAS = {
    50: (3,),
    101: (6, 12, 18),
    152: (5, 10, 15, 20, 25, 30),
    200: (5, 10, 15, 20, 25, 30),
    270: (8, 16, 24, 32, 40, 48),
    350: (10, 20, 30, 40, 50, 60),
    420: (10, 20, 30, 40, 50, 60, 70, 80),
}

BLOCKS = {"C": Bottleneck(), "L": Bottleneck(LambdaOperation())}
Lambda = partial(ResNet, blocks=BLOCKS, se_ratios=(1 / 4, 1 / 4, 0, 0))


def _stages(depth: int, c4_lambdas: Collection[int], c3: str = "C") -> tuple[str, ...]:
    c2_blocks, c3_blocks, c4_blocks, c5_blocks = DEPTHS[depth]
    c4_letters = "".join(
        "L" if block in c4_lambdas else "C" for block in range(1, c4_blocks + 1)
    )
    return "C" * c2_blocks, c3 * c3_blocks, c4_letters, "L" * c5_blocks


MODELS = {
    **{
        f"lambda_resnet_{depth}": Lambda(
            _stages(depth, blocks), "Table 19", INPUT_SIZES[depth]
        )
        for depth, blocks in C4_LAMBDAS.items()
    },
    **{
        f"lambda_resnet_{depth}_c4": Lambda(
            _stages(depth, range(1, counts[2] + 1)),
            "Tables 13, 15: all of c4 and c5",
            INPUT_SIZES[depth],
        )
        for depth, counts in DEPTHS.items()
    },
    "lambda_resnet_270_c3": Lambda(
        _stages(270, range(1, DEPTHS[270][2] + 1), c3="L"),
        "Table 16: all of c3, c4 and c5",
        INPUT_SIZES[270],
        se_ratios=(1 / 4, 0, 0, 0),
    ),
    "lambda_resnet_tiny": Lambda(
        ("C", "CL", "LL", "L"),
        "for tests and the digits",
        input_size=32,
        blocks={**BLOCKS, "L": Bottleneck(LambdaOperation(options={"scope": 7}))},
        stem=Stem(rs_stem, 16),
        filters=(16, 32, 64, 128),
        output_filters=(64, 128, 256, 512),
    ),
}
