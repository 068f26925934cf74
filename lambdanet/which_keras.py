# SPDX-License-Identifier: Apache-2.0
"""The Keras that this process builds its layers and models with: tf_keras, or Keras 3 on any of its backends.

It is chosen once, when a layer or model is first used, and without importing either.
"""

import os
import sys

from lambdanet.errors import InputError, check_known

VARIABLE = "LAMBDANET_KERAS"
NAMES = ("tf_keras", "keras")

TITLES = {"tf_keras": "tf_keras", "keras": "Keras 3"}
HINTS = {
    "keras": "lambdanet needs tf_keras: build the model with `import tf_keras as keras` instead of "
    f"`import keras` or `tf.keras`, or set {VARIABLE}=keras",
    "tf_keras": f"lambdanet uses Keras 3: build the model with `import keras`, or set {VARIABLE}=tf_keras",
}

_used: str | None = None


def use(name: str) -> None:
    """Chooses the Keras of this process, before the first use of a layer or model.

    Args:
      name: "tf_keras", the Keras of TensorFlow Model Garden and the default with TensorFlow; or "keras", that
        is Keras 3, on the backend that KERAS_BACKEND names.

    Raises:
      InputError: the name is another, or layers of the other Keras are in use already.

    Example:
      >>> lambdanet.use("tf_keras")
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


def chosen() -> str:
    """Returns "tf_keras" or "keras".

    The choice of `use`, else of the environment variable LAMBDANET_KERAS, else of the layers in use, else
    Keras 3 where its backend is not TensorFlow: where KERAS_BACKEND says so, or where it is imported already.
    Otherwise tf_keras.

    Raises:
      InputError: LAMBDANET_KERAS has another value.
    """
    if _used:
        return _used
    if name := os.environ.get(VARIABLE):
        check_known(f"Keras in {VARIABLE}", name, NAMES)
        return name
    in_use = getattr(sys.modules.get("lambdanet.backend"), "KERAS", None)
    return in_use or ("keras" if _keras_3_backend() != "tensorflow" else "tf_keras")


def require_tf_keras(user: str) -> None:
    """Raises `InputError` where Keras 3 is chosen; `user` names what works with tf_keras alone."""
    if chosen() != "tf_keras":
        by_name = "use" if _used else VARIABLE if os.environ.get(VARIABLE) else ""
        source = by_name or f"the backend of Keras, {_keras_3_backend()}"
        raise InputError(f"{user} needs tf_keras, got Keras 3 by {source}; set {VARIABLE}=tf_keras")


def take_tf_keras(program: str) -> None:
    """Chooses tf_keras for a program that works with it alone, regardless of the backend of Keras 3.

    Raises:
      InputError: `use` or LAMBDANET_KERAS chose Keras 3.
    """
    if not _used and not os.environ.get(VARIABLE):
        use("tf_keras")
    require_tf_keras(program)


def check_same(value: object, what: str) -> None:
    """Raises `InputError` for a layer, model or tensor of the Keras that is not chosen.

    Reads the module names of the value's classes, so that no Keras is imported. All else is accepted.

    Args:
      value: a layer, a model, a symbolic tensor, or anything else.
      what: the name of the value in the message, such as "model" or "the inputs of LambdaLayer".
    """
    other = _other()
    if any(base.__module__.partition(".")[0] == other for base in type(value).__mro__):
        raise InputError(f"{what} is a {TITLES[other]} {type(value).__name__}; {HINTS[other]}")


def check_caller(layer: object) -> None:
    """Raises `InputError` if a layer or model of the other Keras calls a layer.

    It would neither train nor save it. Reads the state of current calls in that Keras, without importing it.
    Models of both may run in the same process.
    """
    other = _other()
    if caller := (_calling_in_keras_3() if other == "keras" else _calling_in_tf_keras()):
        raise InputError(
            f"{type(layer).__name__} {getattr(layer, 'name', '')!r} is called by a {TITLES[other]} model or "
            f"layer, {type(caller).__name__}, which would neither train nor save it; {HINTS[other]}"
        )


def _other() -> str:
    return "keras" if chosen() == "tf_keras" else "tf_keras"


def _calling_in_keras_3() -> object:
    state = sys.modules.get("keras.src.backend.common.global_state")
    call = state and state.get_global_attribute("current_call_ctx")
    return call and call.entry_layer


def _calling_in_tf_keras() -> object:
    module = sys.modules.get("tf_keras.src.engine.base_layer_utils")
    context = module and module.call_context()
    return context and context.in_call and context.layer


def _keras_3_backend() -> str:
    if keras := sys.modules.get("keras"):
        return keras.config.backend()
    return os.environ.get("KERAS_BACKEND") or "tensorflow"
