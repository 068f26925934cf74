# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of layers and models, and of a lambda layer's inputs.

All raise `InputError`.
"""

import numbers
from collections.abc import Callable, Mapping
from typing import Any

from lambdanet.backend import Shape, Tensor, keras
from lambdanet.backend.tensors import product
from lambdanet.core import which_keras
from lambdanet.core.errors import (
    InputError,
    check_count,
    check_known,
    invalid,
    is_integer,
)
from lambdanet.ops.content_lambdas import KEY_NORMALIZATIONS

# What an error about a map adds.
OF_ZOO = "in a model of the zoo, input_size of create_model sets it"


def check_rates(**rates: float) -> None:
    """Checks that all arguments are rates of dropout, in [0, 1)."""
    for name, value in rates.items():
        if not isinstance(value, numbers.Real) or not 0 <= value < 1:
            raise invalid(name, "in [0, 1)", value)


def check_divisible(filters: int, num_heads: int) -> None:
    """Checks that the heads can share the output channels equally."""
    if filters % num_heads:
        raise InputError(
            f"filters must be divisible by num_heads, got filters={filters} and num_heads={num_heads}"
        )


def check_scope(scope: Any, name: str = "scope") -> int:
    """Checks that a scope, or the side of a window, is a positive odd integer, and returns it as `int`."""
    scope = check_count(name, scope)
    if scope % 2 == 0:
        raise invalid(name, "odd", scope, hint=f"{scope - 1} and {scope + 1} would do")
    return scope


def check_scope_or_none(name: str, value: Any) -> int | None:
    """Checks that a scope is None, the whole axis, or a positive odd integer, and returns it as `int`."""
    return None if value is None else check_scope(value, name)


def own_initializer(initializer: Any) -> Any:
    """Returns the initializer of one table: a copy, so that no two tables get the same random values."""
    which_keras.check_keras_3(initializer, "embeddings_initializer")
    try:
        found = keras.initializers.get(initializer)
    except (ValueError, TypeError):
        raise invalid(
            "embeddings_initializer",
            "a Keras initializer or the name of one",
            initializer,
        ) from None
    return (
        found.from_config(found.get_config())
        if hasattr(found, "from_config")
        else found
    )


def check_optional_count(name: str, value: Any) -> int | None:
    """Checks that an argument is None or a positive integer, and returns it as `int`."""
    return None if value is None else check_count(name, value)


def check_per_axis(name: str, value: Any, check: Callable[[str, Any], Any]) -> Any:
    """Checks an argument that is one value for all spatial axes, or a sequence of one for each.

    Args:
      name: the name of the argument.
      value: the argument.
      check: the check of one value, of the name and the value, which returns it.

    Returns:
      The value, or a tuple of one to three.
    """
    if not isinstance(value, tuple | list):
        return check(name, value)
    if len(value) not in (1, 2, 3):
        raise invalid(name, "one value, or one per spatial axis", value)
    return tuple(check(name, item) for item in value)


def check_causal(causal: Any) -> bool | int | str:
    """Checks the argument `causal` of a lambda layer: False, True, "time" or the number of an axis from 1."""
    if isinstance(causal, str):
        check_known("causal", causal, ("time",))
        return causal
    if isinstance(causal, bool):
        return causal
    accepted = "False, True for sequences, 'time' for the first spatial axis, or a number as of Keras's axes"
    if not is_integer(causal) or not 1 <= causal <= 3:
        raise invalid("causal", accepted, causal, "1 is the first spatial axis")
    return int(causal)


def axis_of_causal(causal: bool | int | str, rank: int) -> int | None:
    """Returns the number of the spatial axis that `causal` names, from 0, of `rank` axes; None without one.

    Raises:
      InputError: True for more than one axis, or the number of an axis that is not there.
    """
    if causal is False:
        return None
    if causal == "time":
        return 0
    if causal is True and rank > 1:
        accepted = f"'time' or a number from 1 to {rank} with {rank} spatial axes"
        raise invalid("causal", accepted, causal)
    axis = int(causal)
    if axis > rank:
        raise invalid("causal", f"at most {rank}, the last spatial axis", causal)
    return axis - 1


def check_normalizations(
    keys: str | None, queries: str | None, batch_norm: Any
) -> None:
    """Checks the arguments `key_normalization`, `query_normalization` and `batch_norm` of a lambda layer."""
    if keys not in KEY_NORMALIZATIONS:
        raise invalid("key_normalization", f"one of {KEY_NORMALIZATIONS}", keys)
    if queries not in ("softmax", None):
        raise invalid("query_normalization", "'softmax' or None", queries)
    if not isinstance(batch_norm, bool | Mapping):
        accepted = "True, False or a dict of arguments"
        raise invalid("batch_norm", accepted, batch_norm)


def checked_shape(shape: Shape, what: str) -> Shape:
    """Returns the shape of an input, whose rank and number of channels a lambda layer accepts."""
    shape = tuple(shape)
    if len(shape) not in (3, 4, 5):
        raise invalid(
            f"the shape of the {what}",
            "[b, n, c], [b, h, w, c] or [b, t, h, w, c]",
            shape,
        )
    if shape[-1] is None:
        raise invalid(
            f"the shape of the {what}",
            "one with a known number of channels",
            shape,
        )
    return shape


def check_state_shapes(
    state: Any, shapes: Mapping[str, Shape], num_lambdas: int
) -> None:
    """Checks a state that a lambda layer continues.

    Args:
      state: one dict of tensors for each lambda.
      shapes: those of the tensors of one lambda, as far as they are known.
      num_lambdas: the number of lambdas.
    """
    accepted = f"of the shapes {[shapes] * num_lambdas}"
    if not isinstance(state, list) or not all(isinstance(x, Mapping) for x in state):
        raise invalid("initial_state", accepted, state)
    given = [_shapes_of(part) for part in state]
    have_shapes = all(_have_shapes(part, shapes) for part in given)
    if len(given) != num_lambdas or not have_shapes:
        raise invalid("initial_state", accepted, given)


def _shapes_of(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shape of each tensor; of anything else, the thing itself."""
    shapes = {}
    for name, x in tensors.items():
        shapes[name] = tuple(x.shape) if hasattr(x, "shape") else x
    return shapes


def _have_shapes(given: Mapping[str, Any], expected: Mapping[str, Shape]) -> bool:
    if given.keys() != expected.keys():
        return False
    for name, shape in given.items():
        if not isinstance(shape, tuple) or not shapes_agree(shape, expected[name]):
            return False
    return True


def batch_and_positions(source: Tensor) -> list[int | None]:
    """Returns the number of examples and of context positions, [b, m], as far as they are known."""
    shape = checked_shape(source.shape, "context")
    return [shape[0], num_positions(shape)]


def num_positions(shape: Shape) -> int | None:
    """Returns the number of positions of a map [b, *size, c]; None where it is unknown."""
    size = shape[1:-1]
    return None if None in size else product(size)


def shapes_agree(shape: Shape, expected: Shape) -> bool:
    """Returns whether two shapes have the same sizes, where both are known."""
    if len(shape) != len(expected):
        return False
    pairs = zip(shape, expected, strict=True)
    return all(a is None or b is None or a == b for a, b in pairs)
