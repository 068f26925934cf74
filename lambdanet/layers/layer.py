# SPDX-License-Identifier: Apache-2.0
"""The base class of all layers here."""

import inspect
from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.errors import invalid


class Layer(K.BaseLayer):
    """A tf_keras layer that refuses empty maps, and calls from Keras 3.

    Raises:
      InputError: when called with a map that has a side of 0, with a Keras 3 tensor, or by a Keras 3 layer or
        model.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _check_call(self, K.flatten([args, kwargs]))
        return super().__call__(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`, also of base classes, from the attributes of their names."""
        bases = filter(lambda base: issubclass(base, Layer) and "__init__" in vars(base), type(self).__mro__)
        names = [name for base in bases for name in inspect.getfullargspec(vars(base)["__init__"]).args[1:]]
        config = super().get_config() | {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "kernel_regularizer" in config:
            config["kernel_regularizer"] = keras.regularizers.serialize(config["kernel_regularizer"])
        return config


@K.plain_python
def _check_call(layer: Layer, arguments: Sequence[Any]) -> None:
    which_keras.check_caller(layer)
    for value in arguments:
        which_keras.check_same(value, f"an input of {type(layer).__name__}")
        shape = getattr(value, "shape", ())
        if getattr(shape, "rank", 0) is not None and 0 in tuple(shape)[1:]:
            raise invalid("each side of a map", "at least 1", tuple(shape))
