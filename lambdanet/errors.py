# SPDX-License-Identifier: Apache-2.0
"""The one exception that stands for a mistake in what the caller gave."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the caller gave cannot be used.

    The message is one line: what was wrong, the value received, and what would be accepted. The
    command line prints it without a traceback and exits with status 2; in Python it is a `ValueError`.
    """


class Preempted(Exception):
    """Training was asked to stop by SIGTERM, and has saved what it had reached.

    The command line prints the message and exits with status 75, which says: try again.
    """


def unknown(kind: str, name: str, accepted: Iterable[str], see: str = "") -> InputError:
    """Returns the error for a name that is not known, with the nearest known ones.

    Args:
      kind: what the name stands for, such as "model".
      name: the name received.
      accepted: every name that would do.
      see: where to find them, if they are too many for one line; they are listed in the message by default.
    """
    accepted = sorted(accepted)
    near = difflib.get_close_matches(name, accepted, n=4, cutoff=0.4)
    others = f"see {see}" if see else f"accepted: {', '.join(accepted)}"
    hint = f"did you mean {' or '.join(near)}?" if near else others
    return InputError(f"unknown {kind} {name!r}; {hint}")


def check_counts(**counts: object) -> None:
    """Refuses the first argument that is not a positive integer.

    Raises:
      InputError: with the argument's name and the value received.
    """
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be a positive integer, got {value!r}")


def check_divisible(filters: int, num_heads: int) -> None:
    """Refuses a width that heads cannot share."""
    if filters % num_heads:
        raise InputError(
            f"filters must be divisible by num_heads, got filters={filters} and num_heads={num_heads}"
        )


def check_scope(scope: int, name: str = "scope") -> None:
    """Refuses a scope, or the side of a window, that has no centre: it must be a positive odd integer."""
    check_counts(**{name: scope})
    if scope % 2 == 0:
        raise InputError(f"{name} must be odd, got {scope}; {scope - 1} and {scope + 1} would do")


def require_tf_keras(value: object, what: str) -> None:
    """Refuses a Keras 3 object, which tf_keras layers and models cannot hold.

    Looks at the modules of the value's classes alone, so neither Keras is imported. Anything that is
    not of Keras 3 passes: TensorFlow tensors, arrays, tf_keras objects.

    Args:
      value: what the caller gave: a layer, a model, a symbolic tensor, or anything else.
      what: what it was given as, such as "model" or "the inputs of LambdaLayer".

    Raises:
      InputError: the value is a Keras 3 layer, model or KerasTensor.
    """
    if any(base.__module__.partition(".")[0] == "keras" for base in type(value).__mro__):
        raise InputError(
            f"{what} is a Keras 3 {type(value).__name__}; lambdanet stands on tf_keras: build it with "
            "`import tf_keras as keras` in the place of `import keras` or `tf.keras`"
        )
