# SPDX-License-Identifier: Apache-2.0
"""Weights in files: written with what belongs to them, and checked before anything is loaded."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import h5py
import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError, short
from lambdanet.layers.attention import AxialAttention, GlobalAttention
from lambdanet.layers.position_embedding import RelativePositionEmbedding
from lambdanet.models.weights import keras_h5, safetensors
from lambdanet.ops import relative_positions

H5, SAFETENSORS = ".weights.h5", ".safetensors"
FOLDER_FILE = "weights.safetensors"  # in the folder that `lambdanet convert` writes
PUBLISHED = "published"  # the key of the metadata that tells which published set a file has
CLASSIFIER = "logits"  # the layer
SHOWN = 5  # how many names an error lists
TABLE_SIDES = range(1, 2048, 2)  # of tables that can be interpolated, those of maps of up to 1024 positions
Array: TypeAlias = "np.ndarray | h5py.Dataset"


def cache_dir() -> Path:
    """Returns the folder of named weights: $LAMBDANET_HOME, or ~/.cache/lambdanet.

    Raises:
      InputError: it, or a part of its path, is a file.
    """
    path = Path(os.environ.get("LAMBDANET_HOME") or os.path.expanduser("~/.cache/lambdanet"))
    existing = next(part for part in (path, *path.parents) if part.exists())
    if not existing.is_dir():
        raise InputError(
            f"LAMBDANET_HOME must be a folder, got {str(path)!r}, where {str(existing)!r} is a file"
        )
    return path


def find(model_name: str, weights: str | Path) -> Path:
    """Returns the file that is meant by `weights=`.

    Args:
      model_name: of the model that they are for.
      weights: a file, a folder of `lambdanet convert`, or a name for MODEL.NAME.safetensors in `cache_dir()`.

    Raises:
      InputError: if there is no such file.
    """
    path = Path(os.path.expanduser(weights))
    if path.name.endswith((H5, SAFETENSORS)):
        if not os.path.isfile(path):  # False also for what cannot be the name of a file
            kinds = f"{H5} or {SAFETENSORS}"
            raise InputError(f"weights must be an existing {kinds} file, got {short(str(weights))}")
        return path
    named = cache_dir() / f"{model_name}.{weights}{SAFETENSORS}"
    if os.sep not in str(weights) and os.path.isfile(named):
        return named
    if os.path.isfile(path / FOLDER_FILE):
        return path / FOLDER_FILE
    sets = "".join(
        f"{name}, "
        for one in pretrained_weights.sets_of(model_name)
        for name in (pretrained_weights.ALIAS, one.tag)
    )
    raise InputError(
        f"weights must be an existing {H5} or {SAFETENSORS} file, a folder of `lambdanet convert`, {sets}"
        f"or the name of a set in {str(cache_dir())!r}, got {short(str(weights))}"
    )


def save(model: keras.Model, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes the weights of a model as safetensors, by the names of its variables.

    Args:
      model: a model of the zoo.
      path: of the file, which ends in ".safetensors".
      metadata: what belongs to them: mean, std, crop, interpolation, classes, licence, source.

    Raises:
      InputError: for another ending.

    Example:
      >>> save(model, "mine.safetensors", {"mean": "0.485, 0.456, 0.406", "licence": "Apache-2.0"})
      >>> create_model(model.name, weights="mine.safetensors")
    """
    if not str(path).endswith(SAFETENSORS):
        raise InputError(f"path must end in {SAFETENSORS}, got {str(path)!r}")
    arrays = {name: variable.numpy() for name, variable in named(model).items()}
    safetensors.write(path, arrays, {"model": model.name, **(metadata or {})})


def metadata_of(path: str | Path) -> dict[str, str]:
    """Returns what is written beside the weights in a safetensors file, its sha256 among it.

    Raises:
      InputError: for a file that is damaged or of another kind.
    """
    return safetensors.read(path)[1]


def load(
    model: keras.Model, path: Path, whole: keras.Model | None = None, other_classes: bool = False
) -> None:
    """Gives a model the weights of a file, all of them or none.

    Tables of relative positions over a whole map are interpolated if the model is for maps of another size.

    Args:
      model: a model of the zoo.
      path: of the file.
      whole: the same model with its classifier, if it gives features: what the file has for that is left out.
      other_classes: whether the classifier stays as it is where the file has one for another number of
        classes. With published weights it always does.

    Raises:
      InputError: for a damaged file, or one whose tensors do not fit; the message names them.
    """
    whole = whole or model
    if path.name.endswith(H5):
        with keras_h5.reading(path, whole) as arrays:
            _load(model, arrays, {}, path, whole, other_classes)
    else:
        _load(model, *safetensors.read(path), path, whole, other_classes)


def _load(
    model: keras.Model,
    arrays: Mapping[str, Array],
    metadata: Mapping[str, str],
    path: Path,
    whole: keras.Model,
    other_classes: bool,
) -> None:
    left_out = set(named(whole)) - set(named(model))
    if other_classes or metadata.get(PUBLISHED):
        classifier = {name: one for name, one in named(model).items() if name.startswith(f"{CLASSIFIER}/")}
        if any(name in arrays and arrays[name].shape != one.shape for name, one in classifier.items()):
            left_out |= classifier.keys()
    assign(model, arrays, repr(str(path)), left_out)


def named(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the weights of a model by the names under which files hold them."""
    return {_name(variable): variable for variable in model.weights}


def assign(
    model: keras.Model,
    arrays: Mapping[str, Array],
    source: str,
    left_out: Collection[str] = frozenset(),
) -> None:
    """Gives a model its weights from arrays by name, all of them or none.

    Tables of relative positions over a whole map are interpolated if the model is for maps of another size.

    Args:
      model: a model of the zoo.
      arrays: one for each weight, and no more. Those of an HDF5 file are read when all names, types and
        shapes fit.
      source: where they come from, for the error.
      left_out: the names of weights that are not assigned; there may be arrays for them.

    Raises:
      InputError: if they do not fit; the message names them.
    """
    variables = {name: variable for name, variable in named(model).items() if name not in left_out}
    given = {name: array for name, array in arrays.items() if name not in left_out}
    resizable = _global_tables(model)
    problems = [f"{name} is missing" for name in variables if name not in given]
    problems += [f"{name} belongs nowhere" for name in given if name not in variables]
    for name in variables.keys() & given.keys():
        wanted, array = tuple(variables[name].shape), given[name]
        if array.dtype not in safetensors.FLOATS:
            problems.append(f"{name} holds {array.dtype}, not floating-point numbers")
        elif wanted != array.shape and not (name in resizable and _is_table(array.shape, wanted)):
            problems.append(f"{name} has the shape {array.shape}, not {wanted}")
    _refuse(problems, source, model)  # before anything is read that could be of any size
    values = {name: np.asarray(given[name]) for name in variables}
    problems = [f"{name} holds NaN or infinity" for name, value in values.items() if not is_finite(value)]
    _refuse(problems, source, model)
    for name, value in values.items():
        variable = variables[name]
        if tuple(variable.shape) != value.shape:
            value = relative_positions.resize_table(tf.constant(value), variable.shape[:-1].as_list())
        variable.assign(tf.cast(value, variable.dtype))


def is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are finite as float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(np.float32)).all())


def _refuse(problems: Sequence[str], source: str, model: keras.Model) -> None:
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        shown = "; ".join(sorted(problems)[:SHOWN])
        raise InputError(f"{source} does not hold the weights of {model.name!r}: {shown}{more}")


def _name(variable: tf.Variable) -> str:
    return variable.name.removesuffix(":0")


def _is_table(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a table of this shape can be interpolated: of the same depth, with an offset in the middle."""
    sides = shape[:-1]
    return shape[-1:] == wanted[-1:] and len(shape) == len(wanted) and all(n in TABLE_SIDES for n in sides)


def _global_tables(model: keras.Model) -> set[str]:
    """The names of tables that have an embedding for every offset within a map."""
    tables = []
    for module in model.submodules:
        if isinstance(module, RelativePositionEmbedding) and module.scope is None and module.num_lambdas == 1:
            tables.append(module.table)
        elif isinstance(module, GlobalAttention | AxialAttention):
            tables += [module.height_table, module.width_table]
    return {_name(table) for table in tables}
