# SPDX-License-Identifier: Apache-2.0
"""Reader of Keras's weight files (.weights.h5) by the names of the variables.

Such a file names a variable by the class of its layer and a count, `layers/conv2d_3/vars/0`. To find the
mapping, Keras saves the model once with each variable replaced by its index.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

import h5py
import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.errors import InputError, one_line


@contextlib.contextmanager
def open_arrays(path: Path, model: keras.Model) -> Iterator[dict[str, h5py.Dataset]]:
    """Yields the arrays of a file for the layers of a model.

    Args:
      path: the path of the file.
      model: the model that was saved, or one of the same layers.

    Yields:
      the arrays by the names of the variables, or by their own if the model has no such variable. An array is
      read when it is converted to NumPy; its shape and type are available before.

    Raises:
      InputError: the file is damaged or of another kind.
    """
    names = {
        key: compat.variable_name(variable)
        for key, variable in _variables_by_key(model).items()
    }
    try:
        with h5py.File(path, "r") as file:
            yield {names.get(key, key): data for key, data in _datasets(file)}
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = one_line(error)
        raise InputError(
            f"{str(path)!r} is damaged or not a .weights.h5 file: {reason}"
        ) from error


def _variables_by_key(model: keras.Model) -> dict[str, K.Variable]:
    """The variables of a model by their keys in a file."""
    variables: list[K.Variable] = []

    def make_saver(
        layer: keras.layers.Layer,
    ) -> Callable[[MutableMapping[str, np.ndarray]], None]:
        own = compat.own_variables(layer)

        def save(store: MutableMapping[str, np.ndarray]) -> None:
            for index, variable in enumerate(own):
                store[str(index)] = np.array(len(variables))
                variables.append(variable)

        return save

    layers = list(compat.sublayers(model))
    try:
        for layer in layers:
            # Which Keras calls.
            object.__setattr__(layer, "save_own_variables", make_saver(layer))
        with tempfile.TemporaryDirectory() as folder:
            model.save_weights(f"{folder}/indices.weights.h5")
            with h5py.File(f"{folder}/indices.weights.h5", "r") as file:
                return {key: variables[int(data[()])] for key, data in _datasets(file)}
    finally:
        for layer in layers:
            vars(layer).pop("save_own_variables", None)


def _datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yields the arrays of the layers; a file may also have an optimizer and metrics."""
    found: list[tuple[str, h5py.Dataset]] = []
    file.visititems(
        lambda name, item: (
            found.append((name, item)) if isinstance(item, h5py.Dataset) else None
        )
    )
    for name, item in found:
        # Bytes where they are not UTF-8.
        if isinstance(name, bytes) or not name.isprintable():
            raise ValueError(f"the name {name!r}")
        if name.startswith("layers/"):
            yield name, item
