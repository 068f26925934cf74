# SPDX-License-Identifier: Apache-2.0
"""The models: a table of all, and a page per family with the cards of its published weights."""

import functools
import inspect
from types import ModuleType
from typing import NamedTuple

from rounding import three_digits

from generate.pages import code, summary, table
from lambdanet.backend import compat
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.models import complexity, unet, zoo
from lambdanet.models import names as zoo_names

# By the number of spatial axes.
UNET_INPUTS = {2: (128, 128), 3: (32, 64, 64)}


def families() -> dict[str, ModuleType]:
    """Returns the modules of the zoo that define models, by their names, in the order of the zoo."""
    modules = [module for module in vars(zoo).values() if hasattr(module, "MODELS")]
    modules.sort(key=lambda module: list(zoo.MODELS).index(next(iter(module.MODELS))))
    return {module.__name__.rpartition(".")[2]: module for module in modules}


def family_of(model: str) -> str:
    """Returns the name of the family of a model."""
    return next(name for name, module in families().items() if model in module.MODELS)


def family_table() -> str:
    """Returns the table of families."""
    rows = [
        [f"[{name}](families/{name}.md)", str(len(module.MODELS)), summary(module)]
        for name, module in families().items()
    ]
    return table(["family", "models", "contents"], rows)


def all_models() -> str:
    """Returns the table of all models."""
    return _models(list(zoo.MODELS), "families/")


def _models(names: list[str], folder: str = "") -> str:
    rows = [
        [
            f"[`{info.name}`]({folder}{family_of(info.name)}.md)"
            if folder
            else f"`{info.name}`",
            three_digits(info.params / 1e6),
            three_digits(info.flops / 1e9),
            str(info.input_size),
            ", ".join(f"{weights.top1:.1f}" for weights in info.weights) or "-",
            info.source,
        ]
        for info in map(zoo_names.info, names)
    ]
    header = [
        "model",
        "parameters (M)",
        "FLOPs (G)",
        "pixels",
        "pretrained, top-1 (%)",
        "source",
    ]
    return table(header, rows)


class UNetSize(NamedTuple):
    """The size of a U-Net with one class and three channels: its name, parameters, FLOPs and input."""

    name: str
    params: int
    flops: int
    size: tuple[int, ...]


@functools.cache
def unet_sizes() -> list[UNetSize]:
    """Returns the sizes of all U-Nets, for a picture or a volume of the size in `UNET_INPUTS`."""
    found = []
    for name, network in unet.MODELS.items():
        size = UNET_INPUTS[len(network.strides)]
        with compat.without_values():
            model = unet.create_unet(name, 1, 3, size)
        params = complexity.count_parameters(model)
        found.append(UNetSize(name, params, complexity.count_flops(model), size))
    return found


def unets() -> str:
    """Returns the table of U-Nets."""
    rows = [
        [
            f"[`{row.name}`](../how-to/unets.md)",
            three_digits(row.params / 1e6),
            three_digits(row.flops / 1e9),
            "x".join(map(str, row.size)),
        ]
        for row in unet_sizes()
    ]
    return table(["U-Net", "parameters (M)", "FLOPs (G)", "pixels"], rows)


def pages() -> dict[str, str]:
    """Returns a page per family."""
    return {
        f"models/families/{name}.md": _page(name, module)
        for name, module in families().items()
    }


def _page(family: str, module: ModuleType) -> str:
    names = list(module.MODELS)
    options = sorted(set().union(*(zoo.MODELS[name].option_names() for name in names)))
    recipes = sorted(
        {recipe for name in names for recipe in zoo_names.info(name).recipes}
    )
    parts = [
        f"# {family}",
        inspect.getdoc(module) or "",
        _models(names),
        f"Options of `create_model`: {code(options)}.",
        f"Recipes: {code(recipes)}.",
        *(
            _card(weights)
            for name in names
            for weights in pretrained_weights.weights_of(name)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _card(weights: PublishedWeights) -> str:
    """Returns the section of a set of published weights."""
    rows = [[name, value] for name, value in weights.summary().items()]
    return f"""## {weights.model}, pretrained weights {weights.tag}

{table(["weights", weights.tag], rows)}
```python
model = lambdanet.create_model("{weights.model}", weights="{weights.tag}")
preprocess = lambdanet.preprocess_for("{weights.model}")
logits = model(preprocess(pictures))  # pictures: uint8 [b, h, w, 3]
backbone = lambdanet.create_model("{weights.model}", weights="{weights.tag}", features_only=True)
```"""
