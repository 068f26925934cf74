# SPDX-License-Identifier: Apache-2.0
"""Table of the models of the zoo, as text."""

from collections.abc import Sequence

from lambdanet import text_table
from lambdanet.configs.registry import pretrained_weights
from lambdanet.models import zoo


def render(names: Sequence[str], with_sizes: bool = False, table_format: str = "text") -> str:
    """Returns a table of image sizes, sources, recipes and weights with their published top-1.

    Args:
      names: the names of the models, one per row.
      with_sizes: whether to add parameters and FLOPs, which takes about a second per model.
      table_format: one of `text_table.FORMATS`.

    Raises:
      InputError: a model or the format is unknown.
    """
    text_table.check_format(table_format)
    sizes = ["parameters (M)", "FLOPs (G)"] if with_sizes else []
    rows = [
        [
            name,
            *(_sizes(name) if with_sizes else []),
            str(zoo.MODELS[name].input_size),
            zoo.MODELS[name].source,
            _first(zoo.recipes_of(name)),
            ", ".join(f"{w.tag}, {w.top1:.1f} %" for w in pretrained_weights.weights_of(name)) or "-",
        ]
        for name in names
    ]
    return text_table.render(["model", *sizes, "pixels", "source", "recipe", "weights"], rows, table_format)


def _sizes(name: str) -> list[str]:
    info = zoo.model_info(name)
    return [f"{info.params / 1e6:.2f}", f"{info.flops / 1e9:.2f}"]


def _first(recipes: Sequence[str]) -> str:
    if not recipes:
        return "-"
    return recipes[0] if len(recipes) == 1 else f"{recipes[0]} and {len(recipes) - 1} more"
