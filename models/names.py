# SPDX-License-Identifier: Apache-2.0
"""Names, sizes and sources of the zoo's models, without importing TensorFlow.

The models are in `lambdanet.models.zoo`; `sizes.csv` has a row for each, which `tests/model_sizes.py` counts.
"""

import csv
import dataclasses
import fnmatch
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lambdanet import configs
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import TEST_SETS, PublishedWeights
from lambdanet.core import text_table
from lambdanet.core.errors import check_known, invalid, join_first

FILE = Path(__file__).with_name("sizes.csv")


class Stage(NamedTuple):
    """The last map of a network at one stride.

    Attributes:
      level: its number, as for `create_model(out_levels=...)`.
      stride: the ratio of the images' resolution to its own, `2**level`.
      channels: the number of its channels.
    """

    level: int
    stride: int
    channels: int


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """The size, source, recipes and weights of a model.

    Attributes:
      name: the name, as for `create_model`.
      params: trainable parameters, with 1000 classes, or one of a U-Net.
      flops: FLOPs per image of `input_size` (see `lambdanet.models.complexity`).
      input_size: the side of the square images, or of volumes, in pixels.
      source: the table or section that gives the architecture.
      recipes: the names of recipes that train it, as for `lambdanet train --recipe`.
      weights: the published sets of weights.
      stages: the maps that `create_model(features_only=True)` can return.
      embedding_size: the number of channels that the classifier reads, d in [b, d] of `num_classes=0`.
      task: what its logits are for, "classification" or "segmentation".
    """

    name: str
    params: int
    flops: int
    input_size: int
    source: str
    recipes: tuple[str, ...]
    weights: tuple[PublishedWeights, ...]
    stages: tuple[Stage, ...]
    embedding_size: int
    task: str


@functools.cache
def rows() -> dict[str, dict[str, str]]:
    """Returns the rows of the table by the names of the models."""
    return {
        row["model"]: row
        for row in csv.DictReader(FILE.read_text(encoding="utf-8").splitlines())
    }


def info(name: str) -> ModelInfo:
    """Returns the row of a model in the table, with its recipes and weights.

    Raises:
      InputError: there is no model of this name; the message has the nearest names.
    """
    check_model(name)
    row = rows()[name]
    channels = [int(number) for number in row["channels"].split()]
    # Of the last levels, up to 5, or of those of a U-Net, from 0.
    first = 6 - len(channels) if row["task"] == "classification" else 0
    return ModelInfo(
        name,
        int(row["parameters"]),
        int(row["flops"]),
        int(row["input_size"]),
        row["source"],
        _recipes().get(name, ()),
        pretrained_weights.weights_of(name),
        tuple(Stage(level, 2**level, d) for level, d in enumerate(channels, first)),
        int(row["embedding_size"]),
        row["task"],
    )


@functools.cache
def _recipes() -> dict[str, tuple[str, ...]]:
    by_model: dict[str, tuple[str, ...]] = {}
    for recipe in configs.list_recipes():
        model = configs.get_recipe(recipe).model
        by_model[model] = (*by_model.get(model, ()), recipe)
    return by_model


def list_models(
    pattern: str = "*", *, pretrained: bool = False, task: str = "classification"
) -> list[str]:
    """Returns the names of models.

    Args:
      pattern: a shell pattern for the names, such as "lambda_resnet_*".
      pretrained: whether to return only models with published weights.
      task: what their logits are for: "classification", or "segmentation" for the U-Nets.

    Raises:
      InputError: the pattern is not a text.
    """
    if not isinstance(pattern, str):
        raise invalid("pattern", "a shell pattern such as 'lambda_resnet_*'", pattern)
    return [
        name
        for name, row in rows().items()
        if row["task"] == task
        and fnmatch.fnmatchcase(name, pattern)
        and (pretrained_weights.weights_of(name) or not pretrained)
    ]


def check_model(name: str, task: str = "") -> None:
    """Checks that there is a model of this name, and that it is for a task, if one is given.

    Raises:
      InputError: there is none, and the message has the nearest names; or it is for another task.
    """
    check_known("model", name, rows(), see="`lambdanet list`")
    own = rows()[name]["task"]
    if task not in ("", own):
        raise invalid("model", f"one for {task}", name, f"it is for {own}")


def render_table(
    names: Sequence[str],
    with_sizes: bool = False,
    table_format: str = "text",
    with_accuracy: bool = False,
) -> str:
    """Returns a table of models with their published weights.

    Args:
      names: the names of the models, one per row.
      with_sizes: whether to add parameters and FLOPs.
      table_format: one of `text_table.FORMATS`.
      with_accuracy: whether the other columns are the published top-1 on each test set, for models that have
        weights; else they are the source of the model, a recipe and the weights.

    Raises:
      InputError: a model or the format is unknown.
    """
    text_table.check_format(table_format)
    header = [
        "model",
        *(["parameters (M)", "FLOPs (G)"] if with_sizes else []),
        "pixels",
    ]
    header += (
        ["weights", "ImageNet", *TEST_SETS]
        if with_accuracy
        else ["source", "recipe", "weights"]
    )
    rows = []
    for model in map(info, names):
        sizes = (
            [f"{model.params / 1e6:.2f}", f"{model.flops / 1e9:.2f}"]
            if with_sizes
            else []
        )
        row = [model.name, *sizes, str(model.input_size)]
        if with_accuracy:
            rows += [[*row, *_accuracy(one)] for one in model.weights]
        else:
            weights = (
                ", ".join(f"{one.tag}, {one.top1:.1f} %" for one in model.weights)
                or "-"
            )
            rows.append(
                [*row, model.source, join_first(model.recipes, most=1) or "-", weights]
            )
    return text_table.render(header, rows, table_format)


def _accuracy(weights: PublishedWeights) -> list[str]:
    known = {name: f"{top1:.2f}" for name, top1 in weights.accuracies.items()}
    return [weights.tag, *(known.get(name, "-") for name in ("ImageNet", *TEST_SETS))]
