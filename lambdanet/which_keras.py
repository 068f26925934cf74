# SPDX-License-Identifier: Apache-2.0
"""The Keras that this process builds its layers and models with: Keras 3 on any of its backends, or tf_keras.

It is chosen once, when a layer or model is first used, and without importing either.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from lambdanet.errors import InputError, check_known, invalid

VARIABLE = "LAMBDANET_KERAS"
NAMES = ("keras", "tf_keras")
BACKENDS = ("tensorflow", "jax", "torch")

TITLES = {"tf_keras": "tf_keras", "keras": "Keras 3"}
HINTS = {
    "keras": "lambdanet uses tf_keras here: build the model with `import tf_keras as keras`, or set "
    f"{VARIABLE}=keras",
    "tf_keras": f"lambdanet uses Keras 3: build the model with `import keras`, or set {VARIABLE}=tf_keras",
}

_used: str | None = None


def use(name: str) -> None:
    """Chooses the Keras of this process, before the first use of a layer or model.

    Args:
      name: "keras", which is Keras 3 on the backend that KERAS_BACKEND names, the default; or "tf_keras", the
        Keras of TensorFlow Model Garden.

    Raises:
      InputError: the name is another, or layers of the other Keras are in use already.

    Example:
      >>> lambdanet.use("keras")
    """
    global _used
    check_known("Keras", name, NAMES)
    backend = sys.modules.get("lambdanet.backend")
    if backend and backend.KERAS != name:
        raise InputError(
            f"use({name!r}) must come before the first use of a layer or model, which took {backend.KERAS}; "
            f"or set {VARIABLE}={name}"
        )
    _used = name


def use_backend(name: str | None, accepted: Sequence[str]) -> None:
    """Chooses the backend of Keras 3, before Keras is imported.

    Args:
      name: the backend; None: that of KERAS_BACKEND, else of `~/.keras/keras.json`, else TensorFlow.
      accepted: the backends that can be chosen.

    Raises:
      InputError: it is another backend, or Keras is imported on another.
    """
    backend = name or os.environ.get("KERAS_BACKEND")
    if not backend:
        return
    if backend not in accepted:
        raise invalid("backend" if name else "KERAS_BACKEND", " or ".join(accepted), backend)
    if "keras" in sys.modules and (imported := keras_3_backend()) != backend:
        raise invalid("backend", f"{imported}, on which this process has imported Keras", backend)
    os.environ["KERAS_BACKEND"] = backend


def chosen() -> str:
    """Returns "keras" or "tf_keras".

    The choice of `use`, else of the environment variable LAMBDANET_KERAS, else of the layers in use, else
    Keras 3.

    Raises:
      InputError: LAMBDANET_KERAS has another value.
    """
    if _used:
        return _used
    if name := os.environ.get(VARIABLE):
        check_known(f"Keras in {VARIABLE}", name, NAMES)
        return name
    return getattr(sys.modules.get("lambdanet.backend"), "KERAS", "keras")


def take(name: str, user: str, backends: Sequence[str] = ()) -> None:
    """Chooses the Keras of a part of lambdanet that works with one of them alone.

    Args:
      name: the Keras, "keras" or "tf_keras".
      user: the part, for the message.
      backends: the backends of Keras 3 that it works with; empty: all.

    Raises:
      InputError: the other Keras or another backend was chosen.
    """
    if not _used and not os.environ.get(VARIABLE):
        use(name)
    if chosen() != name:
        source = "use" if _used else VARIABLE
        raise InputError(f"{user} needs {TITLES[name]}, got {TITLES[_other(name)]} by {source}")
    if backends and (backend := keras_3_backend()) not in backends:
        raise InputError(
            f"{user} needs Keras on {' or '.join(backends)}, got {backend}; set KERAS_BACKEND={backends[0]}"
        )


def check_same(value: object, what: str) -> None:
    """Raises `InputError` for a layer, model or tensor of the Keras that is not chosen.

    Reads the module names of the value's classes, so that no Keras is imported. All else is accepted.

    Args:
      value: a layer, a model, a symbolic tensor, or anything else.
      what: the name of the value in the message, such as "model" or "the inputs of LambdaLayer".
    """
    other = _other(chosen())
    if any(base.__module__.partition(".")[0] == other for base in type(value).__mro__):
        raise InputError(f"{what} is a {TITLES[other]} {type(value).__name__}; {HINTS[other]}")


def check_caller(layer: object) -> None:
    """Raises `InputError` if a layer or model of the other Keras calls a layer.

    It would neither train nor save it. Reads the state of current calls in that Keras, without importing it.
    Models of both may run in the same process.
    """
    other = _other(chosen())
    if caller := (_calling_in_keras_3() if other == "keras" else _calling_in_tf_keras()):
        raise InputError(
            f"{type(layer).__name__} {getattr(layer, 'name', '')!r} is called by a {TITLES[other]} model or "
            f"layer, {type(caller).__name__}, which would neither train nor save it; {HINTS[other]}"
        )


def _other(name: str) -> str:
    return "keras" if name == "tf_keras" else "tf_keras"


def _calling_in_keras_3() -> object:
    state = sys.modules.get("keras.src.backend.common.global_state")
    call = state and state.get_global_attribute("current_call_ctx")
    return call and call.entry_layer


def _calling_in_tf_keras() -> object:
    module = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    context = module and module.call_context()
    return context and context.in_call and context.layer


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
        accepted = f"{', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
        name = str(error).rpartition(" ")[2]
        raise invalid("the backend of Keras (KERAS_BACKEND)", accepted, name) from None
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
