# SPDX-License-Identifier: Apache-2.0
"""Tables of speeds that Bello (2021) reports for models on 8 cores of TPU v3."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SpeedRow:
    """A row of a table.

    Attributes:
      label: the paper's name for it.
      model: the name of the model in the zoo.
      input_size: the side of the images, in pixels.
      printed: the paper's figure.
    """

    label: str
    model: str
    input_size: int
    printed: float


@dataclasses.dataclass(frozen=True)
class SpeedTable:
    """A table of speeds.

    Attributes:
      title: its subject.
      mode: "train" or "infer".
      mixed_precision: whether activations are bfloat16 rather than float32.
      unit: the unit of the figures: "s" for seconds per 1024 images, "ex/s" for images per second.
      rows: in the paper's order.
    """

    title: str
    mode: str
    mixed_precision: bool
    unit: str
    rows: tuple[SpeedRow, ...]

    def seconds(self, figure: float) -> float:
        """Converts a figure of this table to seconds per 1024 images."""
        return figure if self.unit == "s" else IMAGES / figure

    def figure(self, images_per_second: float) -> float:
        """Converts a speed to a figure of this table."""
        return IMAGES / images_per_second if self.unit == "s" else images_per_second


IMAGES = 1024  # per training step in Table 18
CORES = 8

TABLES = {
    "12": SpeedTable(
        "placement of lambda layers in a ResNet-50: inference",
        "infer",
        False,
        "ex/s",
        tuple(
            SpeedRow(label, model, 224, speed)
            for label, model, speed in (
                ("C-C-C-C", "resnet_50", 7240),
                ("L-C-C-C", "resnet_50_lccc", 1880),
                ("L-L-C-C", "resnet_50_llcc", 1280),
                ("L-L-L-C", "resnet_50_lllc", 1160),
                ("L-L-L-L", "resnet_50_llll", 1160),
                ("C-L-L-L", "resnet_50_clll", 2200),
                ("C-C-L-L", "resnet_50_ccll", 4980),
                ("C-C-C-L", "resnet_50_cccl", 7160),
            )
        ),
    ),
    "13": SpeedTable(
        "lambda layers in c4 of LambdaResNets: inference",
        "infer",
        False,
        "ex/s",
        (
            SpeedRow("ResNet-101 wo/ SE", "resnet_rs_101_no_se", 224, 4600),
            SpeedRow("ResNet-101 w/ SE", "resnet_rs_101", 224, 4000),
            SpeedRow("LambdaResNet-101", "lambda_resnet_101", 224, 4040),
            SpeedRow("LambdaResNet-101-C4", "lambda_resnet_101_c4", 224, 2560),
            SpeedRow("ResNet-152 wo/ SE", "resnet_rs_152_no_se", 256, 2780),
            SpeedRow("ResNet-152 w/ SE", "resnet_rs_152", 256, 2400),
            SpeedRow("LambdaResNet-152", "lambda_resnet_152", 256, 2400),
            SpeedRow("LambdaResNet-152-C4", "lambda_resnet_152_c4", 256, 1480),
        ),
    ),
    "18": SpeedTable(
        "LambdaResNets: seconds per training step of 1024 images",
        "train",
        True,
        "s",
        tuple(
            SpeedRow(f"LambdaResNet-{depth} at {size}", f"lambda_resnet_{depth}", size, seconds)
            for depth, size, seconds in (
                (50, 128, 0.058),
                (50, 160, 0.089),
                (101, 160, 0.14),
                (101, 192, 0.20),
                (152, 192, 0.28),
                (152, 224, 0.38),
                (152, 256, 0.49),
                (152, 288, 0.63),
                (270, 256, 0.91),
                (350, 256, 1.16),
                (350, 288, 1.48),
                (350, 320, 1.91),
                (420, 320, 2.25),
            )
        ),
    ),
}
