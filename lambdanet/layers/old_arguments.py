# SPDX-License-Identifier: Apache-2.0
"""Arguments that lambda layers had before: in saved configurations, and as options of models."""

from collections.abc import Mapping
from typing import Any

from lambdanet.core.errors import InputError, check_flags
from lambdanet.layers.position_argument import SCOPE, check_beside, with_position
from lambdanet.layers.position_embedding import (
    PositionEmbedding,
    RelativePositionEmbedding,
)

# Arguments of before that belong to the position embedding -> their names there.
OF_POSITION = {
    "dilation": "dilation",
    "map_size": "map_size",
    "resize": "resize",
    "position_bias": "use_bias",
}
OLD_ARGUMENTS = {*OF_POSITION, "use_batch_norm"}


def refuse_old(arguments: Mapping[str, Any]) -> None:
    """Raises `InputError` for an argument of before, with the one that has taken its place."""
    for name in OLD_ARGUMENTS & arguments.keys():
        value = arguments[name]
        new = f"batch_norm={value!r}"
        if name in OF_POSITION:
            embedding = f"(scope=..., {OF_POSITION[name]}={value!r})"
            new = f"position=RelativePositionEmbedding{embedding}"
        raise InputError(f"a lambda layer has no argument {name}; give {new}")


def rename_mask(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, in which `mask` was what each query sees, with three axes."""
    arguments = dict(arguments)
    if len(getattr(arguments.get("mask"), "shape", ())) == 3:
        arguments["attention_mask"] = arguments.pop("mask")
    return arguments


def translate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a lambda layer for those of before, which may be among them.

    Raises:
      InputError: an argument of before contradicts a position embedding.
    """
    arguments = dict(arguments)
    use_batch_norm = arguments.pop("use_batch_norm", True)
    check_flags(use_batch_norm=use_batch_norm)
    if not use_batch_norm:
        arguments["batch_norm"] = False
    relative = {}
    for name, new in OF_POSITION.items():
        if name in arguments:
            relative[new] = arguments.pop(name)
    position = arguments.get("position", "relative")
    if isinstance(position, Mapping):
        return with_position(arguments, position)
    if isinstance(position, PositionEmbedding):
        for name, value in relative.items():
            check_beside(position, name, value)
    elif position == "relative" and relative:
        embedding = RelativePositionEmbedding(
            scope=arguments.get("scope", SCOPE),
            implementation=arguments.get("implementation", "auto"),
            embeddings_initializer=arguments.get("embeddings_initializer"),
            dtype=arguments.get("dtype"),
            name="position",
            **relative,
        )
        return with_position(arguments, embedding)
    return arguments
