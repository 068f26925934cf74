# SPDX-License-Identifier: Apache-2.0
"""The recipes: a section per module of `lambdanet.configs`, and the fields of a recipe."""

import importlib
import inspect
from collections.abc import Callable

from generate.pages import table
from lambdanet import configs
from lambdanet.configs.recipe import Recipe, describe_fields


def _pixels(recipe: Recipe) -> str:
    """Returns the sizes of images: "160, evaluated at 224"."""
    if not recipe.training_size:
        return str(recipe.input_size)
    return f"{recipe.training_size}, evaluated at {recipe.input_size}"


COLUMNS: dict[str, Callable[[Recipe], object]] = {
    "model": lambda recipe: recipe.model,
    "dataset": lambda recipe: recipe.dataset,
    "pixels": _pixels,
    "epochs": lambda recipe: recipe.epochs,
    "batch": lambda recipe: recipe.global_batch_size,
    "optimizer": lambda recipe: recipe.optimizer,
    "learning rate": lambda recipe: recipe.learning_rate,
}  # header -> cell


def sections() -> str:
    """Returns a section per module with its docstring and its recipes."""
    modules: dict[str, list[str]] = {}
    for name in configs.list_recipes():
        modules.setdefault(name.partition(":")[0], []).append(name)
    return "\n".join(_section(module, names) for module, names in modules.items())


def _section(module: str, names: list[str]) -> str:
    """Returns the docstring of a module, what is the same for all of its recipes, and their table."""
    text = inspect.getdoc(importlib.import_module(f"{configs.__name__}.{module}"))
    recipes = [configs.get_recipe(name) for name in names]
    columns = {
        title: [_shown(cell(recipe)) for recipe in recipes]
        for title, cell in COLUMNS.items()
    }
    same = {
        title: cells[0]
        for title, cells in columns.items()
        if len(names) > 1 and len(set(cells)) == 1
    }
    columns = {title: cells for title, cells in columns.items() if title not in same}
    rows = list(zip([f"`{name}`" for name in names], *columns.values(), strict=True))
    shared = (
        f"Same for all: {', '.join(f'{title} {cell}' for title, cell in same.items())}.\n\n"
        if same
        else ""
    )
    return f"## {module}\n\n{text}\n\n{shared}{table(['recipe', *columns], rows)}"


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def fields() -> str:
    """Returns the table of the fields of a recipe."""
    rows = []
    for name, kind, default, meaning in describe_fields():
        shown = (
            "the recipe's"
            if default is None
            else f"`{default}`"
            if default
            else "empty"
        )
        rows.append([f"`{name}`", kind, shown, meaning])
    return table(["field", "type", "default", "meaning"], rows)
