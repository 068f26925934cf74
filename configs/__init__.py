# SPDX-License-Identifier: Apache-2.0
"""Training recipes as data; nothing here imports TensorFlow.

One module per setup. A module holds a single `RECIPE`, found under the module's name, or `ROWS`, a dictionary
of recipes found as `module:row`.
"""

import importlib
import pkgutil

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import unknown


def list_recipes() -> list[str]:
    """Returns the names of all recipes, sorted."""
    return sorted(_recipes())


def get_recipe(name: str) -> Recipe:
    """Returns a recipe by its name, `module` or `module:row`.

    Raises:
      InputError: no recipe has this name; the message gives the nearest ones.

    Example:
      >>> get_recipe("digits").model
      'lambda_resnet_tiny'
    """
    recipes = _recipes()
    if name not in recipes:
        raise unknown("recipe", name, recipes, see="`lambdanet train --help`")
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
