# SPDX-License-Identifier: Apache-2.0
"""Chooses the backend of Keras 3, and rejects objects of tf_keras, without importing either."""

import contextlib
import contextvars
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

from lambdanet.core.errors import InputError, invalid

BACKENDS = ("tensorflow", "jax", "torch")
OF_COMMANDS = BACKENDS[:2]  # that they can choose
HINT = (
    "lambdanet uses Keras 3: build the model with `import keras`, and hold it in a model of tf_keras by "
    "`lambdanet.as_tf_keras`"
)

_is_held = contextvars.ContextVar("is_held", default=False)


def use_backend(name: str | None) -> None:
    """Chooses the backend of Keras 3 for a command, before Keras is imported.

    Args:
      name: the backend; None: that of KERAS_BACKEND, else of `~/.keras/keras.json`, else TensorFlow.

    Raises:
      InputError: it is not one of `OF_COMMANDS`, or Keras is imported on another.
    """
    backend = name or os.environ.get("KERAS_BACKEND")
    if not backend:
        return
    if backend not in OF_COMMANDS:
        raise invalid(
            "backend" if name else "KERAS_BACKEND", " or ".join(OF_COMMANDS), backend
        )
    if "keras" in sys.modules and (imported := keras_3_backend()) != backend:
        raise invalid(
            "backend", f"{imported}, on which this process has imported Keras", backend
        )
    os.environ["KERAS_BACKEND"] = backend


def check_backend(user: str, backends: Sequence[str]) -> None:
    """Checks the backend of Keras 3 for a part of lambdanet that works on some of them alone.

    Args:
      user: the part, for the message.
      backends: the backends that it works on.

    Raises:
      InputError: Keras is on another one.
    """
    backend = keras_3_backend()
    if backend not in backends:
        raise InputError(
            f"{user} needs Keras on {' or '.join(backends)}, got {backend}; set KERAS_BACKEND={backends[0]}"
        )


def check_keras_3(value: object, what: str) -> None:
    """Raises `InputError` for a layer, model or tensor of tf_keras.

    Reads the module names of the value's classes, so that tf_keras is not imported. All else is accepted.

    Args:
      value: a layer, a model, a symbolic tensor, or anything else.
      what: the name of the value in the message, such as "model" or "the inputs of LambdaLayer".
    """
    if any(
        base.__module__.partition(".")[0] == "tf_keras" for base in type(value).__mro__
    ):
        raise InputError(f"{what} is a tf_keras {type(value).__name__}; {HINT}")


def check_caller(layer: object) -> None:
    """Raises `InputError` if a layer or model of tf_keras calls a layer, which it would not train or save.

    Reads the state of current calls of tf_keras, without importing it. Models of `as_tf_keras` may call one.
    """
    module = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    if module is None:
        return
    context = module.call_context()
    if context.in_call and not _is_held.get():
        raise InputError(
            f"{type(layer).__name__} {getattr(layer, 'name', '')!r} is called by a tf_keras model or layer, "
            f"{type(context.layer).__name__}, which would neither train nor save it; {HINT}"
        )


@contextlib.contextmanager
def held_in_tf_keras() -> Iterator[None]:
    """Lets a model of tf_keras call a Keras 3 network whose variables it has as its own."""
    token = _is_held.set(True)
    try:
        yield
    finally:
        _is_held.reset(token)


def keras_3_backend() -> str:
    """Returns the backend of Keras 3: "tensorflow", "jax" or "torch"."""
    return import_keras_3().config.backend()


def import_keras_3() -> ModuleType:
    """Imports Keras 3 and returns it.

    Raises:
      InputError: the backend that KERAS_BACKEND or `~/.keras/keras.json` names, by default TensorFlow, is not
        installed, or there is none of this name.
    """
    try:
        import keras
    except ValueError as error:
        raise invalid(
            "the backend of Keras (KERAS_BACKEND)",
            f"{', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}",
            str(error).rpartition(" ")[2],
        ) from None
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in BACKENDS:
            raise
        if installed := [name for name in BACKENDS if importlib.util.find_spec(name)]:
            raise InputError(
                f"the backend of Keras, {missing}, is not installed: pip install 'lambdanet[{missing}]', "
                f"or set KERAS_BACKEND={installed[0]}"
            ) from None
        raise InputError(
            "lambdanet needs a backend of Keras: pip install 'lambdanet[tensorflow]', or [jax] or [torch]"
        ) from None
    return keras
