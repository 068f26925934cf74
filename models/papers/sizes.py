# SPDX-License-Identifier: Apache-2.0
"""Tables of the papers with printed sizes, and the model that each row describes.

Figures are texts as printed, because their digits show their precision. Tables with numbers are from
LambdaNetworks (Bello 2021), the others from the appendix of HaloNet (Vaswani et al. 2021).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
      label: the paper's name for it.
      model: the name of the model in the zoo; empty if lambdanet does not have it.
      options: options of the model.
      input_size: the side of the images, in pixels.
      params: trainable parameters as printed, in millions; empty if the table prints none.
      flops: FLOPs as printed, in the table's unit.
      memory: the memory of embeddings or attention maps as printed, in GB.
      note: an explanation of differences.
    """

    label: str
    model: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    input_size: int = 224
    params: str = ""
    flops: str = ""
    memory: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
      title: its subject.
      rows: in the paper's order.
      flops_unit: "G" or "M".
      count_lambdas: whether the paper's FLOPs count computing and applying lambdas.
    """

    title: str
    rows: tuple[Row, ...]
    flops_unit: str = "G"
    count_lambdas: bool = True


NOT_BUILT = "another architecture, not in lambdanet"
MOBILE_FLOPS = (
    "both printed figures are about 1.8 M above ours, by an unspecified counter; they exclude computing and "
    "applying the lambdas, with which the second is 563.634"
)
UNEXPLAINED = "no reading of the text explains the printed figure"

_TABLE_8 = (  # k, h, u, parameters; the scope is 7 for u > 1, as appendix F.2 says
    (8, 2, 1, "14.8"),
    (8, 16, 1, "15.6"),
    (2, 4, 1, "14.7"),
    (4, 4, 1, "14.7"),
    (8, 4, 1, "14.8"),
    (16, 4, 1, "15.0"),
    (32, 4, 1, "15.4"),
    (2, 8, 1, "14.7"),
    (4, 8, 1, "14.7"),
    (8, 8, 1, "14.7"),
    (16, 8, 1, "15.1"),
    (32, 8, 1, "15.7"),
    (8, 8, 4, "15.3"),
    (8, 8, 8, "16.0"),
    (16, 4, 4, "16.0"),
)
_KNOWN_MISPRINTS = {(8, 2, 1), (8, 16, 1), (2, 4, 1), (2, 8, 1), (4, 8, 1), (32, 8, 1)}


def _lambda_options(k: int, h: int, u: int) -> dict[str, Any]:
    return {"key_dim": k, "num_heads": h, **({"intra_depth": u, "scope": 7} if u > 1 else {})}


TABLES = {
    "3": Table(
        "layers in a ResNet-50",
        (
            Row("Conv", "resnet_50", params="25.6"),
            Row("Conv + channel attention", "resnet_50_se", params="28.1"),
            Row(
                "Conv + linear attention (Chen et al. 2018)",
                "resnet_50_linear_attention",
                params="33.0",
                note="quoted from Chen et al.; lambdanet's projections have no bias",
            ),
            Row("Conv + linear attention (Shen et al. 2018)", "", note=NOT_BUILT),
            Row("Conv + relative self-attention (Bello et al. 2019)", "resnet_50_augmented", params="25.8"),
            Row(
                "Local relative self-attention (Ramachandran et al. 2019)",
                "resnet_50_local_attention",
                params="18.0",
            ),
            Row("Local relative self-attention (Hu et al. 2019)", "", params="23.3", note=NOT_BUILT),
            Row("Local relative self-attention (Zhao et al. 2020)", "", params="20.5", note=NOT_BUILT),
            Row("Lambda layer", "resnet_50_llll", params="15.0"),
            Row("Lambda layer (|u|=4)", "resnet_50_llll", _lambda_options(16, 4, 4), params="16.0"),
        ),
    ),
    "4": Table(
        "memory of self-attention and lambda layers, batch 128",
        (
            Row("Global self-attention", "resnet_50_global_attention", memory="120"),
            Row("Axial self-attention", "resnet_50_axial_attention", memory="4.8"),
            Row("Local self-attention (7x7)", "resnet_50_local_attention"),
            Row("Lambda layer", "resnet_50_llll", memory="1.9"),
            Row(
                "Lambda layer (|k|=8)",
                "resnet_50_llll",
                {"key_dim": 8},
                memory="0.95",
                note="half of the row above, which is rounded first",
            ),
            Row(
                "Lambda layer (shared embeddings)", "resnet_50_llll", {"share_positions": True}, memory="0.63"
            ),
            Row("Lambda convolution (7x7)", "resnet_50_llll", {"scope": 7}),
        ),
    ),
    "8": Table(
        "query depth k, heads h and intra-depth u",
        (
            Row("ResNet baseline", "resnet_50", params="25.6"),
            *(
                Row(
                    f"k={k} h={h} u={u}",
                    "resnet_50_llll",
                    _lambda_options(k, h, u),
                    params=params,
                    note=UNEXPLAINED if (k, h, u) in _KNOWN_MISPRINTS else "",
                )
                for k, h, u, params in _TABLE_8
            ),
        ),
    ),
    "9": Table(
        "content and positional interactions",
        (
            Row("content", "resnet_50_llll", {"position": None}, params="14.9", flops="5.0"),
            Row("position", "resnet_50_llll", {"content": False}, params="14.9", flops="11.9"),
            Row(
                "content and position",
                "resnet_50_llll",
                params="14.9",
                flops="12.0",
                note="Table 3 prints 15.0 for the same model",
            ),
        ),
    ),
    "10": Table(
        "scope, in the last three stages (the paper says two)",
        tuple(
            Row(f"{r}x{r}" if r else "global", "resnet_50_clll", {"scope": r}, flops=flops)
            for r, flops in ((3, "5.7"), (7, "6.1"), (15, "7.8"), (23, "10.0"), (31, "12.4"), (None, "19.4"))
        ),
    ),
    "12": Table(
        "placement of lambda layers in a ResNet-50",
        (
            Row("C-C-C-C", "resnet_50", params="25.6"),
            Row("L-C-C-C", "resnet_50_lccc", params="25.5"),
            Row("L-L-C-C", "resnet_50_llcc", params="25.0"),
            Row("L-L-L-C", "resnet_50_lllc", params="21.7"),
            Row("L-L-L-L", "resnet_50_llll", params="15.0"),
            Row("C-L-L-L", "resnet_50_clll", params="15.1"),
            Row("C-C-L-L", "resnet_50_ccll", params="15.4", note=UNEXPLAINED),
            Row("C-C-C-L", "resnet_50_cccl", params="18.8"),
        ),
    ),
    "13": Table(
        "lambda layers in c4 of LambdaResNets",
        (
            Row("ResNet-101 wo/ SE", "resnet_rs_101_no_se", params="44.6"),
            Row("ResNet-101 w/ SE", "resnet_rs_101", params="63.6"),
            Row("LambdaResNet-101", "lambda_resnet_101", params="36.9"),
            Row("LambdaResNet-101-C4", "lambda_resnet_101_c4", params="26.0"),
            Row("ResNet-152 wo/ SE", "resnet_rs_152_no_se", input_size=256, params="60.2"),
            Row("ResNet-152 w/ SE", "resnet_rs_152", input_size=256, params="86.6"),
            Row("LambdaResNet-152", "lambda_resnet_152", input_size=256, params="51.4"),
            Row("LambdaResNet-152-C4", "lambda_resnet_152_c4", input_size=256, params="35.1"),
        ),
    ),
    "15": Table(
        "parameters of LambdaResNet-C4 and EfficientNet-B6",
        (
            Row("EfficientNet-B6", "efficientnet_b6", input_size=528, params="43"),
            Row("LambdaResNet-152-C4", "lambda_resnet_152_c4", input_size=320, params="35"),
            Row("LambdaResNet-200-C4", "lambda_resnet_200_c4", input_size=320, params="42"),
        ),
    ),
    "16": Table(
        "FLOPs of LambdaResNet-C4 and EfficientNet-B6 (lambda layers in c3 too, as the figure says)",
        (
            Row("EfficientNet-B6", "efficientnet_b6", input_size=528, flops="38"),
            Row(
                "LambdaResNet-270-C4 (7x7)", "lambda_resnet_270_c3", {"scope": 7}, input_size=256, flops="34"
            ),
        ),
    ),
    "17": Table(
        "MobileNetV2 with lightweight lambda blocks",
        (
            Row("MobileNet-v2", "mobilenet_v2", params="3.50", flops="603", note=MOBILE_FLOPS),
            Row(
                "MobileNet-v2 with 2 lightweight lambda blocks",
                "mobilenet_v2_lambda",
                params="3.21",
                flops="563",
                note=MOBILE_FLOPS,
            ),
        ),
        flops_unit="M",
        count_lambdas=False,
    ),
    "A2": Table(
        "HaloNets",
        tuple(
            Row(
                name.upper(),
                f"halonet_{name}",
                input_size=input_size,
                params=params,
                note="a final convolution of 1280 channels would give 12.28" if name == "h3" else "",
            )
            for name, input_size, params in (
                ("h0", 256, "5.5"),
                ("h1", 256, "8.1"),
                ("h2", 256, "9.4"),
                ("h3", 320, "12.3"),
                ("h4", 384, "19.1"),
                ("h5", 448, "30.7"),
                ("h6", 512, "43.4"),
                ("h7", 600, "67"),
            )
        ),
    ),
    "A3": Table(
        "HaloNets of twice the width, with 1000 classes",
        (
            Row("H4 (base 128)", "halonet_h4_base128", input_size=384, params="85"),
            Row("H4 (base 128, 4x4 patch)", "halonet_h4_base128_patch", input_size=384, params="85"),
            Row("H4 (base 128, Conv-12)", "halonet_h4_base128_c12", input_size=384, params="87"),
        ),
    ),
}
