# SPDX-License-Identifier: Apache-2.0
"""Keras's files of weights (.weights.h5), read by the names of the variables.

In such a file a variable lies under the class of its layer and a count, `layers/conv2d_3/vars/0`. Which one
that is, Keras tells when it is let to save the model with a number in the place of each value.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

import h5py
import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError, one_line

LAYERS = "layers/"  # besides these, a file may hold an optimizer and metrics


@contextlib.contextmanager
def reading(path: Path, model: keras.Model) -> Iterator[dict[str, h5py.Dataset]]:
    """Yields what a file holds for the layers of a model.

    Args:
      path: of the file.
      model: the one that was saved, or one of the same layers.

    Yields:
      the arrays, by the names of the variables; those that the model has no place for, by their own. Each is
      read when NumPy makes an array of it; shape and type are known before.

    Raises:
      InputError: for a file that is damaged or of another kind.
    """
    names = {place: variable.name.removesuffix(":0") for place, variable in _places(model).items()}
    try:
        with h5py.File(path, "r") as file:
            yield {
                names.get(place, place): data for place, data in _datasets(file) if place.startswith(LAYERS)
            }
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = one_line(error)
        raise InputError(f"{str(path)!r} is damaged or no .weights.h5 file: {reason}") from error


def _places(model: keras.Model) -> dict[str, tf.Variable]:
    """Where Keras puts each variable of a model."""
    variables: list[tf.Variable] = []

    def numbering(layer: keras.layers.Layer) -> Callable[[MutableMapping], None]:
        own = layer._trainable_weights + layer._non_trainable_weights  # without those of layers within it

        def save(store: MutableMapping) -> None:
            for index, variable in enumerate(own):
                store[str(index)] = len(variables)
                variables.append(variable)

        return save

    layers = [module for module in model.submodules if isinstance(module, keras.layers.Layer)]
    try:
        for layer in layers:
            object.__setattr__(layer, "save_own_variables", numbering(layer))  # which Keras calls
        with tempfile.TemporaryDirectory() as folder:
            model.save_weights(f"{folder}/places.weights.h5")
            with h5py.File(f"{folder}/places.weights.h5", "r") as file:
                return {
                    place: variables[int(data[()])]
                    for place, data in _datasets(file)
                    if place.startswith(LAYERS)
                }
    finally:
        for layer in layers:
            vars(layer).pop("save_own_variables", None)


def _datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    found: list[tuple[str, h5py.Dataset]] = []
    file.visititems(lambda name, item: found.append((name, item)) if isinstance(item, h5py.Dataset) else None)
    for name, item in found:
        if isinstance(name, bytes) or not name.isprintable():  # bytes where they are not UTF-8
            raise ValueError(f"the name {name!r}")
        yield name, item
