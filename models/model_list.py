# SPDX-License-Identifier: Apache-2.0
"""Table of the models of the zoo, as text."""

from collections.abc import Sequence

from lambdanet import text_table
from lambdanet.configs.registry.pretrained_weights import TEST_SETS, PublishedWeights
from lambdanet.models import names as zoo_names


def render(
    names: Sequence[str], with_sizes: bool = False, table_format: str = "text", with_accuracy: bool = False
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
    header = ["model", *(["parameters (M)", "FLOPs (G)"] if with_sizes else []), "pixels"]
    header += ["weights", "ImageNet", *TEST_SETS] if with_accuracy else ["source", "recipe", "weights"]
    rows = []
    for info in map(zoo_names.info, names):
        sizes = [f"{info.params / 1e6:.2f}", f"{info.flops / 1e9:.2f}"] if with_sizes else []
        row = [info.name, *sizes, str(info.input_size)]
        if with_accuracy:
            rows += [[*row, *_accuracy(one)] for one in info.weights]
        else:
            weights = ", ".join(f"{one.tag}, {one.top1:.1f} %" for one in info.weights) or "-"
            rows.append([*row, info.source, _first(info.recipes), weights])
    return text_table.render(header, rows, table_format)


def _accuracy(weights: PublishedWeights) -> list[str]:
    known = {name: f"{top1:.2f}" for name, top1 in weights.accuracies.items()}
    return [weights.tag, *(known.get(name, "-") for name in ("ImageNet", *TEST_SETS))]


def _first(recipes: Sequence[str]) -> str:
    if not recipes:
        return "-"
    return recipes[0] if len(recipes) == 1 else f"{recipes[0]} and {len(recipes) - 1} more"
