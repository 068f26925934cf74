# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `create_model`."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lambdanet.backend import keras
from lambdanet.errors import InputError, invalid, is_integer, one_line
from lambdanet.models.architecture import Architecture
from lambdanet.models.layer_builder import POOLINGS


def check_overrides(
    name: str, architecture: Architecture, overrides: Mapping[str, Any], others: Iterable[str] = ()
) -> None:
    """Raises `InputError` for an override that is no option; names the nearest of `others`."""
    for override in overrides:
        if override not in architecture.option_names():
            near = "".join(
                f" (did you mean {other}?)" for other in difflib.get_close_matches(override, others, n=1)
            )
            accepted = ", ".join(sorted(architecture.option_names())) or "none"
            raise InputError(f"model {name!r} has no option {override!r}{near}; its options: {accepted}")


def checked_regularizer(regularizer: Any) -> Any:
    try:
        found = keras.regularizers.get(regularizer)
    except (ValueError, TypeError):
        found = regularizer
    if found is not None and not callable(found):  # tf_keras returns unknown names
        raise invalid("kernel_regularizer", "a Keras regularizer or the name of one", regularizer)
    return found


def checked_batch_norm(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    arguments = {} if arguments is None else arguments
    try:
        norm = keras.layers.BatchNormalization(**arguments, axis=-1, gamma_initializer="ones", name="norm")
        if not (0 <= norm.momentum <= 1 and norm.epsilon > 0):
            raise ValueError("momentum is from 0 to 1 and epsilon above 0")
    except (ValueError, TypeError) as error:
        accepted = "arguments of a Keras BatchNormalization but axis, gamma_initializer and name"
        raise invalid("batch_norm", accepted, arguments, one_line(error)) from None
    return arguments


def checked_activation(name: str | None) -> str | None:
    try:
        keras.activations.get(name)
    except (ValueError, TypeError):
        raise invalid("activation", "the name of a Keras activation such as 'swish'", name) from None
    return name


def checked_pooling(pooling: str | None, num_classes: int) -> str | None:
    accepted = (*POOLINGS, *(() if num_classes else (None,)))
    if pooling not in accepted:
        hint = "None needs num_classes=0" if pooling is None else ""
        raise invalid("pooling", f"one of {', '.join(map(repr, accepted))}", pooling, hint)
    return pooling


def selected(features: Mapping[str, Any], levels: Sequence[int] | None) -> dict[str, Any]:
    """The endpoints of the given levels; None stands for all but level 1."""
    if levels is None:
        return {level: x for level, x in features.items() if level != "1"}
    known = [int(level) for level in features]
    if (
        not isinstance(levels, Sequence)
        or not levels
        or not all(is_integer(i) and i in known for i in levels)
    ):
        raise invalid("out_levels", f"some of the levels {', '.join(map(str, known))}", levels)
    return {str(int(level)): features[str(int(level))] for level in levels}


def image_size(input_size: int | tuple[int, int] | None) -> tuple[int | None, int | None]:
    if input_size is None:
        return None, None
    size = input_size if isinstance(input_size, Sequence) else (input_size, input_size)
    if len(size) != 2 or not all(is_integer(side) and side > 0 for side in size):
        raise invalid("input_size", "a positive integer or a pair (height, width)", input_size)
    return int(size[0]), int(size[1])
