# SPDX-License-Identifier: Apache-2.0
"""Frozen layers of a fine-tuned model: neither their weights nor their batch statistics change."""

import fnmatch

from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import invalid
from lambdanet.models.layer_builder import CLASSIFIER

BACKBONE = "backbone"  # all layers but the classifier


def frozen_layers(model: keras.Model, recipe: Recipe) -> list[keras.layers.Layer]:
    """Returns the layers that the recipe's `freeze` names.

    It has patterns, separated by commas. One, such as "stem*", "c2" or "c4_block1", matches the name of a
    layer, or its part before an underscore; "backbone" is all but the classifier. `InputError` where one
    matches no layer with weights, or all layers are frozen.
    """
    candidates = [layer for layer in model.layers if layer.weights]
    found: dict[str, keras.layers.Layer] = {}
    for pattern in filter(None, map(str.strip, recipe.freeze.split(","))):
        matching = {
            layer.name: layer for layer in candidates if _matches(layer.name, pattern)
        }
        if not matching:
            parts = dict.fromkeys(layer.name.partition("_")[0] for layer in candidates)
            raise invalid(
                "freeze",
                f"{BACKBONE}, or layers of {model.name} ({', '.join(parts)})",
                pattern,
            )
        found |= matching
    if len(found) == len(candidates):
        raise invalid("freeze", f"fewer than all layers of {model.name}", recipe.freeze)
    return list(found.values())


def _matches(name: str, pattern: str) -> bool:
    if pattern == BACKBONE:
        return name != CLASSIFIER
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(
        name, f"{pattern}_*"
    )
