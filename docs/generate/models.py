# SPDX-License-Identifier: Apache-2.0
"""The models: tables of all, and a page per family with the cards of its published weights."""

import inspect
from types import ModuleType

from rounding import three_digits

from generate.pages import code, summary, table
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.models import names as zoo_names
from lambdanet.models import zoo


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
    """Returns the table of all classifiers."""
    return _models(zoo_names.list_models(), "families/")


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


def unets() -> str:
    """Returns the table of U-Nets."""
    return _models(zoo_names.list_models(task="segmentation"), "families/")


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
