# SPDX-License-Identifier: Apache-2.0
"""Callbacks of the user: for Weights & Biases, MLflow, or one's own."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, invalid, one_line

# The recipe, the model_dir -> a callback of Keras 3.
Factory = Callable[[Recipe, Path], keras.callbacks.Callback]


def find_factories(names: Sequence[str | Factory]) -> list[Factory]:
    """Returns the functions that `--callback=module:function` names; functions are returned unchanged.

    Modules in the current directory are also found; `InputError` for what is not.
    """
    return [
        find_function(name, "callback") if isinstance(name, str) else name
        for name in names
    ]


def create(
    factories: Sequence[Factory], recipe: Recipe, model_dir: Path
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks; `InputError` where a function returns something else."""
    made = [factory(recipe, model_dir) for factory in factories]
    for factory, callback in zip(factories, made, strict=True):
        if not isinstance(callback, keras.callbacks.Callback):
            name = getattr(factory, "__name__", "callback")
            raise invalid(f"result of {name}", "a keras.callbacks.Callback", callback)
    return made


def find_function(name: str, what: str) -> Callable[..., Any]:
    """Returns the function "module:function", of a module that may be in the current directory.

    Args:
      name: the names of the module and the function.
      what: what the name stands for in errors.

    Raises:
      InputError: the module cannot be imported, or has no such function.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise invalid(what, "module:function", name)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # of any kind: the module is the user's
        raise InputError(
            f"{what} {name!r} cannot be imported: {one_line(error)}"
        ) from None
    if not callable(found):
        raise invalid(what, f"module:function, a function of {module}", name)
    return found
