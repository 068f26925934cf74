# SPDX-License-Identifier: Apache-2.0
"""The models of the zoo as a table of text."""

from collections.abc import Sequence

from lambdanet import text_table
from lambdanet.configs.registry import pretrained_weights
from lambdanet.models import zoo


def render(names: Sequence[str], with_sizes: bool = False, form: str = "text") -> str:
    """Returns a line for each model: image size, source, recipe and weights, with their published top-1.

    Args:
      names: of the models.
      with_sizes: parameters and FLOPs too, for which the models are built: about a second each.
      form: one of `text_table.FORMATS`.

    Raises:
      InputError: for an unknown model or form.
    """
    text_table.check_format(form)
    sizes = ["parameters (M)", "FLOPs (G)"] if with_sizes else []
    rows = [
        [
            name,
            *(_sizes(name) if with_sizes else []),
            str(zoo.MODELS[name].input_size),
            zoo.MODELS[name].source,
            _first(zoo.recipes_of(name)),
            ", ".join(f"{one.tag}, {one.top1:.1f} %" for one in pretrained_weights.weights_of(name)) or "-",
        ]
        for name in names
    ]
    return text_table.render(["model", *sizes, "pixels", "source", "recipe", "weights"], rows, form)


def _sizes(name: str) -> list[str]:
    info = zoo.model_info(name)
    return [f"{info.params / 1e6:.2f}", f"{info.flops / 1e9:.2f}"]


def _first(recipes: Sequence[str]) -> str:
    if not recipes:
        return "-"
    return recipes[0] if len(recipes) == 1 else f"{recipes[0]} and {len(recipes) - 1} more"
