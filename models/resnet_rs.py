# SPDX-License-Identifier: Apache-2.0
"""ResNet-RS (Bello et al. 2021), with and without squeeze-and-excitation: the LambdaResNets' baselines."""

from lambdanet.models.resnet import ResNet, repeat

# Blocks in c2, c3, c4 and c5.
DEPTHS = {
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    270: (4, 29, 53, 4),
    350: (4, 36, 72, 4),
    420: (4, 44, 87, 4),
}
# The largest images each depth is trained at in the paper (Table 20); the paper does not train depth 200.
INPUT_SIZES = {50: 160, 101: 192, 152: 288, 200: 256, 270: 256, 350: 320, 420: 320}


def _rows(suffix: str, se_ratio: float) -> dict[str, ResNet]:
    return {
        f"resnet_rs_{depth}{suffix}": ResNet(
            repeat("CCCC", depths),
            "Tables 5, 13, 18",
            INPUT_SIZES[depth],
            se_ratios=(se_ratio,) * 4,
        )
        for depth, depths in DEPTHS.items()
    }


MODELS = {**_rows("", 1 / 4), **_rows("_no_se", 0)}
