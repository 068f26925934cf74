# SPDX-License-Identifier: Apache-2.0
"""Tables of the papers with printed sizes, and the model that each row of `sizes.csv` describes.

Figures are texts as printed, because their digits show their precision. Tables with numbers are from
LambdaNetworks (Bello 2021), the others from the appendix of HaloNet (Vaswani et al. 2021). In Table 8, the
scope is 7 for an intra-depth above 1, as appendix F.2 says.
"""

import ast
import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
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


def read_rows(file: str) -> dict[str, list[dict[str, str]]]:
    """Returns the rows of a file of this folder, in the papers' order, by the number of their table."""
    tables: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(
        Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    ):
        tables.setdefault(row["table"], []).append(row)
    return tables


def parse_model(text: str) -> tuple[str, dict[str, Any]]:
    """Returns a model and its options, of a text such as "resnet_50_llll key_dim=8 num_heads=2"."""
    model, *options = text.split() or [""]
    pairs = [option.split("=") for option in options]
    return model, {name: ast.literal_eval(value) for name, value in pairs}


def _row(columns: Mapping[str, str]) -> Row:
    model, values = parse_model(columns["model"])
    figures = {name: columns[name] for name in ("params", "flops", "memory", "note")}
    return Row(columns["label"], model, values, int(columns["input_size"]), **figures)


_TITLES = {
    "3": "layers in a ResNet-50",
    "4": "memory of self-attention and lambda layers, batch 128",
    "8": "query depth k, heads h and intra-depth u",
    "9": "content and positional interactions",
    "10": "scope, in the last three stages (the paper says two)",
    "12": "placement of lambda layers in a ResNet-50",
    "13": "lambda layers in c4 of LambdaResNets",
    "15": "parameters of LambdaResNet-C4 and EfficientNet-B6",
    "16": "FLOPs of LambdaResNet-C4 and EfficientNet-B6 (lambda layers in c3 too, as the figure says)",
    "17": "MobileNetV2 with lightweight lambda blocks",
    "A1": "HaloNet-50 scaled to a budget of 30 million parameters",
    "A2": "HaloNets",
    "A3": "HaloNets of twice the width, with 1000 classes",
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "17": {"flops_unit": "M", "count_lambdas": False}
}
TABLES = {
    number: Table(_TITLES[number], tuple(map(_row, rows)), **_OPTIONS.get(number, {}))
    for number, rows in read_rows("sizes.csv").items()
}
