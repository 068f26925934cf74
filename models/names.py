# SPDX-License-Identifier: Apache-2.0
"""Names, sizes and sources of the zoo's models, without importing TensorFlow.

The models are in `lambdanet.models.zoo`; `sizes.csv` has a row for each, which `tests/model_sizes.py` counts.
"""

import csv
import dataclasses
import fnmatch
import functools
from pathlib import Path
from typing import NamedTuple

from lambdanet import configs
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.errors import check_known, invalid

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
      params: trainable parameters, with 1000 classes.
      flops: FLOPs per image of `input_size` (see `lambdanet.models.complexity`).
      input_size: the side of the square images, in pixels.
      source: the table or section that gives the architecture.
      recipes: the names of recipes that train it, as for `lambdanet train --recipe`.
      weights: the published sets of weights.
      stages: the maps that `create_model(features_only=True)` can return.
      embedding_size: the number of channels that the classifier reads, d in [b, d] of `num_classes=0`.
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


@functools.cache
def _rows() -> dict[str, dict[str, str]]:
    """Returns the rows of the table by the names of the models."""
    return {row["model"]: row for row in csv.DictReader(FILE.read_text(encoding="utf-8").splitlines())}


def info(name: str) -> ModelInfo:
    """Returns the row of a model in the table, with its recipes and weights.

    Raises:
      InputError: there is no model of this name; the message has the nearest names.
    """
    check_model(name)
    row = _rows()[name]
    channels = [int(number) for number in row["channels"].split()]  # of the last levels, up to 5
    return ModelInfo(
        name,
        int(row["parameters"]),
        int(row["flops"]),
        int(row["input_size"]),
        row["source"],
        _recipes().get(name, ()),
        pretrained_weights.weights_of(name),
        tuple(Stage(level, 2**level, d) for level, d in enumerate(channels, start=6 - len(channels))),
        int(row["embedding_size"]),
    )


@functools.cache
def _recipes() -> dict[str, tuple[str, ...]]:
    by_model: dict[str, tuple[str, ...]] = {}
    for recipe in configs.list_recipes():
        model = configs.get_recipe(recipe).model
        by_model[model] = (*by_model.get(model, ()), recipe)
    return by_model


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Returns the names of models.

    Args:
      pattern: a shell pattern for the names, such as "lambda_resnet_*".
      pretrained: whether to return only models with published weights.

    Raises:
      InputError: the pattern is not a text.
    """
    if not isinstance(pattern, str):
        raise invalid("pattern", "a shell pattern such as 'lambda_resnet_*'", pattern)
    names = [name for name in _rows() if fnmatch.fnmatchcase(name, pattern)]
    return [name for name in names if pretrained_weights.weights_of(name) or not pretrained]


def check_model(name: str) -> None:
    """Checks that there is a model of this name.

    Raises:
      InputError: there is none; the message has the nearest names.
    """
    check_known("model", name, _rows(), see="`lambdanet list`")
