# SPDX-License-Identifier: Apache-2.0
"""Training recipes as data, without importing TensorFlow.

There is one module per setup. A module has a single `RECIPE`, named like the module, or `ROWS`, a dictionary
of recipes named `module:row`, or both.
"""

import importlib
import pkgutil
from pathlib import Path

from lambdanet.configs.recipe import Recipe, read_json
from lambdanet.core.errors import unknown


def list_recipes() -> list[str]:
    """Returns the names of all recipes, sorted."""
    return sorted(_recipes())


def get_recipe(name: str) -> Recipe:
    """Returns a recipe by its name, `module` or `module:row`, or from a file such as `recipe.json` of a run.

    Raises:
      InputError: there is none; the message has the nearest names.

    Example:
      >>> get_recipe("digits").model
      'lambda_resnet_tiny'
    """
    if name.endswith(".json"):
        return read_json(Path(name).expanduser())
    recipes = _recipes()
    if name not in recipes:
        rows = [
            recipe
            for recipe in recipes
            if recipe.startswith(f"{name.partition(':')[0]}:")
        ]
        raise unknown("recipe", name, rows or recipes, see="`lambdanet train --help`")
    return recipes[name]


def _recipes() -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "RECIPE"):
            found[info.name] = module.RECIPE
        for row, recipe in getattr(module, "ROWS", {}).items():
            found[f"{info.name}:{row}"] = recipe
    return found
