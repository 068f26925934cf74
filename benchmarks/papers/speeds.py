# SPDX-License-Identifier: Apache-2.0
"""Tables of speeds that Bello (2021) reports for models on 8 cores of TPU v3: `speeds.csv`."""

import dataclasses
import json
from collections.abc import Mapping

from benchmarks.papers.sizes import read_rows


@dataclasses.dataclass(frozen=True)
class SpeedRow:
    """A row of a table.

    Attributes:
      label: the paper's name for it.
      model: the name of the model in the zoo, and its options.
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


def _row(columns: Mapping[str, str]) -> SpeedRow:
    printed = json.loads(columns["printed"])
    return SpeedRow(
        columns["label"], columns["model"], int(columns["input_size"]), printed
    )


_ROWS = {
    number: tuple(map(_row, rows)) for number, rows in read_rows("speeds.csv").items()
}
TABLES = {
    "4": SpeedTable(
        "self-attention and lambda layers in a ResNet-50: inference",
        "infer",
        False,
        "ex/s",
        _ROWS["4"],
    ),
    "12": SpeedTable(
        "placement of lambda layers in a ResNet-50: inference",
        "infer",
        False,
        "ex/s",
        _ROWS["12"],
    ),
    "13": SpeedTable(
        "lambda layers in c4 of LambdaResNets: inference",
        "infer",
        False,
        "ex/s",
        _ROWS["13"],
    ),
    "18": SpeedTable(
        "LambdaResNets: seconds per training step of 1024 images",
        "train",
        True,
        "s",
        _ROWS["18"],
    ),
}
