# SPDX-License-Identifier: Apache-2.0
"""Weights in files: written with what belongs to them, and checked before anything is loaded."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet import position
from lambdanet.attention import AxialAttention, GlobalAttention
from lambdanet.errors import InputError
from lambdanet.models import safetensors
from lambdanet.position_embedding import RelativePositionEmbedding

H5, SAFETENSORS = ".weights.h5", ".safetensors"
SHOWN = 5  # how many names an error lists


def cache_dir() -> Path:
    """Returns the folder of named weights: $LAMBDANET_HOME, or ~/.cache/lambdanet."""
    return Path(os.environ.get("LAMBDANET_HOME") or Path.home() / ".cache" / "lambdanet")


def find(model_name: str, weights: str | Path) -> Path:
    """Returns the file that is meant by `weights=`.

    Args:
      model_name: of the model that they are for.
      weights: a file, or a name such as "imagenet" for MODEL.NAME.safetensors in `cache_dir()`.

    Raises:
      InputError: if there is no such file.
    """
    path = Path(weights).expanduser()
    if not path.name.endswith((H5, SAFETENSORS)):
        named = cache_dir() / f"{model_name}.{weights}{SAFETENSORS}"
        if os.sep in str(weights) or not named.is_file():
            raise InputError(
                f"weights must be an existing {H5} or {SAFETENSORS} file, or the name of a set in "
                f"{str(cache_dir())!r}, got {str(weights)!r}"
            )
        return named
    if not path.is_file():
        raise InputError(f"weights must be an existing {H5} or {SAFETENSORS} file, got {str(weights)!r}")
    return path


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


def load(model: keras.Model, path: Path) -> None:
    """Gives a model the weights of a file, all of them or none.

    Tables of relative positions over a whole map are interpolated if the model is for maps of another size.

    Raises:
      InputError: for a damaged file, or one whose tensors do not fit; the message names them.
    """
    if path.name.endswith(H5):
        _load_h5(model, path)
        return
    assign(model, safetensors.read(path)[0], repr(str(path)))


def named(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns the weights of a model by the names under which files hold them."""
    return {variable.name.removesuffix(":0"): variable for variable in model.weights}


def assign(model: keras.Model, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Gives a model its weights from arrays by name, all of them or none.

    Tables of relative positions over a whole map are interpolated if the model is for maps of another size.

    Args:
      model: a model of the zoo.
      arrays: one for each weight, and no more.
      source: where they come from, for the error.

    Raises:
      InputError: if they do not fit; the message names them.
    """
    variables, resizable = named(model), _global_tables(model)
    problems = [f"{name} is missing" for name in variables if name not in arrays]
    problems += [f"{name} belongs nowhere" for name in arrays if name not in variables]
    values: dict[str, np.ndarray | tf.Tensor] = {}
    for name in variables.keys() & arrays.keys():
        wanted, found = tuple(variables[name].shape), arrays[name].shape
        values[name] = arrays[name]
        if wanted != found and name in resizable and wanted[-1:] == found[-1:] and len(wanted) == len(found):
            values[name] = position.resize_table(tf.constant(arrays[name]), wanted[:-1])
        elif wanted != found:
            problems.append(f"{name} has the shape {found}, not {wanted}")
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        shown = "; ".join(sorted(problems)[:SHOWN])
        raise InputError(f"{source} does not hold the weights of {model.name!r}: {shown}{more}")
    for name, value in values.items():
        variables[name].assign(tf.cast(value, variables[name].dtype))


def _load_h5(model: keras.Model, path: Path) -> None:
    before = model.get_weights()
    try:
        model.load_weights(path)
    except (ValueError, OSError, KeyError) as error:
        model.set_weights(before)
        reason = " ".join(str(error).split())
        raise InputError(f"{str(path)!r} does not hold the weights of {model.name!r}: {reason}") from error


def _global_tables(model: keras.Model) -> set[str]:
    """The names of tables that have an embedding for every offset within a map."""
    tables = []
    for module in model.submodules:
        if isinstance(module, RelativePositionEmbedding) and module.scope is None and module.num_lambdas == 1:
            tables.append(module.table)
        elif isinstance(module, GlobalAttention | AxialAttention):
            tables += [module.height_table, module.width_table]
    return {table.name.removesuffix(":0") for table in tables}
