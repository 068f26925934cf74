# SPDX-License-Identifier: Apache-2.0
"""The model_dir: the folder of a training run and its trained model.

recipe.json   the recipe of the run, with every field     checkpoints/  the newest checkpoints
history.csv   a row per epoch                              logs/         files for TensorBoard
curves.png    the history as a drawing, where matplotlib is installed (logs.py)
classes.txt   the name of each class, in the order of the labels
data_dir.txt  the folder of the data, or their repository with its commit, if one was given
data.json     the number of pictures, steps per epoch, and pictures that are held out (start.py)
best/         the checkpoint of the best epoch, if the recipe has a held-out split
.lock         the process of the run, while it trains
"""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.configs import recipe as recipes
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import absolute, local_path, write_atomic
from lambdanet.models.weights import weight_files
from lambdanet.models.weights.repositories import PREFIX
from lambdanet.training.data.class_names import Classes, check_equal, read_names
from lambdanet.training.run import checkpoints
from lambdanet.training.run.build import build_model
from lambdanet.training.run.checkpoints import AVERAGE, MODEL
from lambdanet.training.run.lora import merge_adapters

RECIPE = "recipe.json"
CHECKPOINTS = "checkpoints"
BEST = "best"
HISTORY = "history.csv"
CURVES = "curves.png"
LOGS = "logs"
CLASSES = "classes.txt"
DATA_DIR = "data_dir.txt"
DATA = "data.json"


def check_model_dir(model_dir: str | Path, recipe: Recipe | None = None) -> Path:
    """Checks that a recipe, or any, can be trained in a model_dir; returns its path and writes nothing.

    Raises:
      InputError: the folder cannot be written, has another recipe, files that are not a run's, or checkpoints
        of tf_keras.
    """
    path = local_path(model_dir, "model_dir")
    parent = next(folder for folder in (path, *path.parents) if folder.exists())
    failure = f"model_dir {str(path)!r} cannot be written"
    if not parent.is_dir():
        raise InputError(f"{failure}: {str(parent)!r} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{failure}: no permission to write to {str(parent)!r}")
    _check_not_of_tf_keras(path)
    if recipe and _has(path / RECIPE):
        saved = load_recipe(path)
        count = recipe.num_classes or saved.num_classes
        recipe = dataclasses.replace(recipe, num_classes=count)
        fields = "; ".join(
            f"{field} is {old!r} there and {new!r} here"
            for field, (old, new) in recipes.differences(saved, recipe).items()
            if not isinstance(old, str) or absolute(old) != absolute(str(new))
        )
        if fields:
            start = shlex.quote(f"--set=start_from={path}")
            raise InputError(
                f"model_dir {str(path)!r} was made with another recipe: {fields}; repeat its settings, or "
                f"give another --model_dir, where {start} starts from its weights"
            )
    if recipe and not _has(path / RECIPE):
        _check_no_other_files(path)
    return path


def _check_not_of_tf_keras(path: Path) -> None:
    """Raises `InputError` for a run of a version before 0.1.0 on tf_keras, whose checkpoints are not read."""
    if any((path / CHECKPOINTS).glob("ckpt-*.index")):
        raise InputError(
            f"model_dir {str(path)!r} was trained with tf_keras by an earlier version, whose checkpoints are "
            "no longer read; give another --model_dir"
        )


def _check_no_other_files(path: Path) -> None:
    """Raises `InputError` for a folder that is not a run's and has files of others."""
    others = sorted(file.name for file in path.glob("*") if not _is_of_run(file))
    if others:
        accepted = "a new or empty folder, or that of a run"
        raise invalid(
            "model_dir", accepted, str(path), f"it has no {RECIPE}, but {others[0]!r}"
        )


def _is_of_run(file: Path) -> bool:
    own = (CHECKPOINTS, BEST, HISTORY, CURVES, LOGS, CLASSES, DATA_DIR, DATA)
    return file.name.startswith(".") or file.suffix == ".log" or file.name in own


def claim(
    model_dir: str | Path,
    recipe: Recipe,
    class_names: Sequence[str] = (),
    data_dir: str | None = None,
    data: str = "",
) -> Path:
    """Creates the folder of a run with its recipe, or checks that an existing one has the same recipe.

    Paths in the recipe are saved as absolute ones.
    Class names are saved and compared like the recipe, if there are any. The folder of the data is saved for
    `find_data_dir`; where it is None, the saved one remains. `data` is the text of data.json. Errors as in
    `check_model_dir`.
    """
    path = check_model_dir(model_dir, recipe)
    check_class_names(path, class_names)
    texts = {
        CLASSES: "".join(f"{name}\n" for name in class_names),
        RECIPE: recipes.to_json(_with_absolute_paths(recipe)),
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            if text and not _has(path / name):
                write_atomic(path / name, text)
        for name in (CHECKPOINTS, BEST):
            checkpoints.remove_unfinished(path / name)
        if data_dir is not None:
            if not data_dir.startswith(PREFIX):
                data_dir = absolute(data_dir)
            write_atomic(path / DATA_DIR, f"{data_dir}\n")
        if data:
            write_atomic(path / DATA, data)
    except OSError as error:
        raise InputError(
            f"model_dir {str(path)!r} cannot be written: {error}"
        ) from None
    return path


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """Returns a recipe whose files are found from any folder; published weights keep their names."""
    paths: dict[str, Any] = {}
    for field in ("labels", "pseudo_labels", "start_from"):
        path = getattr(recipe, field)
        published = pretrained_weights.find(recipe.model, path)
        if os.path.exists(os.path.expanduser(path)) and not published:
            paths[field] = absolute(path)
    return dataclasses.replace(recipe, **paths)


def find_data_dir(model_dir: str | Path, data_dir: str | None = None) -> str | None:
    """Returns the folder of the data: `data_dir` if given, else the absolute path saved in training.

    It is None, the default of TFDS, where training had none, or its version did not save it; `InputError`
    where the saved folder does not exist. For the repository and revision of training, the saved commit.
    """
    file = Path(model_dir).expanduser() / DATA_DIR
    saved = ""
    if _has(file):
        saved = file.read_bytes().decode(errors="replace").removesuffix("\n")
    if saved.startswith(PREFIX) and data_dir in (None, saved.rpartition("@")[0]):
        return saved
    if data_dir is not None:
        return data_dir
    if saved and not tf.io.gfile.isdir(saved):
        raise InputError(
            f"data_dir must be given: {str(model_dir)!r} was trained on {saved!r}, which is not a directory"
        )
    return saved or None


def class_names(model_dir: str | Path) -> list[str]:
    """Returns the names of the classes in a model_dir; none where they were not saved.

    `InputError` where they cannot be read, or their number differs from the recipe's.
    """
    path = Path(model_dir).expanduser()
    names = read_names(path / CLASSES) if _has(path / CLASSES) else []
    count = load_recipe(path).num_classes if names and _has(path / RECIPE) else 0
    if count not in (0, len(names)):
        raise invalid(
            f"lines in {str(path / CLASSES)!r}", f"{count}, one per class", len(names)
        )
    return names


def classes_of(model_dir: str | Path) -> Classes:
    """Returns the classes of a model_dir; without names, and with 0 classes, where nothing was saved."""
    names = class_names(model_dir)
    path = Path(model_dir).expanduser()
    count = len(names) or (load_recipe(path).num_classes if _has(path / RECIPE) else 0)
    return Classes(repr(str(model_dir)), count, names)


def check_class_names(model_dir: str | Path, names: Sequence[str]) -> None:
    """Raises `InputError` for the first class of the data that differs from a model_dir's."""
    trained = class_names(model_dir)
    if trained and names:
        check_equal(names, trained, "the data", repr(str(model_dir)))


def load_recipe(model_dir: str | Path) -> Recipe:
    """Returns the recipe of a model_dir; `InputError` where there is no readable one."""
    path = Path(model_dir).expanduser()
    if not path.is_dir():
        raise invalid(
            "model_dir",
            "a folder of `lambdanet train`",
            str(path),
            "it is not a directory",
        )
    if not _has(path / RECIPE):
        raise invalid(
            "model_dir",
            "a folder of `lambdanet train`",
            str(path),
            f"it has no {RECIPE}",
        )
    return recipes.read_json(path / RECIPE)


def load_trained_model(model_dir: str | Path) -> tuple[keras.Model, Recipe]:
    """Returns the trained model of a model_dir, and its recipe.

    Raises:
      InputError: as `load_weights`, or the weights are of another model.

    Example:
      >>> model, recipe = load_trained_model("runs/digits")
    """
    recipe, arrays = load_weights(model_dir)
    model = build_model(recipe)
    weight_files.assign_weights(model, arrays, f"model_dir {str(model_dir)!r}")
    return model, recipe


def load_weights(model_dir: str | Path) -> tuple[Recipe, dict[str, np.ndarray]]:
    """Returns the recipe of a model_dir and the trained weights, by their names in files.

    The weights are from the newest readable checkpoint, or with `held_out_split` in the recipe, from the best
    epoch; with `ema_decay`, their moving averages; with `lora_rank`, with the adapters merged.

    Raises:
      InputError: there is no model_dir, or no checkpoint in it.
    """
    recipe = load_recipe(model_dir)
    _check_not_of_tf_keras(Path(model_dir).expanduser())
    best = Path(model_dir).expanduser() / BEST
    directory = best if best.is_dir() else best.with_name(CHECKPOINTS)
    remedy = "to start again" if directory != best else "to use the newest checkpoint"
    step, arrays = checkpoints.read_newest(directory, remedy)
    if step == 0:
        missing = f"there is no checkpoint in {str(directory)!r}"
        raise invalid(
            "model_dir",
            "a folder of a run with an epoch or more",
            str(model_dir),
            missing,
        )
    names = [name.removeprefix(MODEL) for name in arrays if name.startswith(MODEL)]
    weights = {
        name: arrays.get(f"{AVERAGE}{name}", arrays[f"{MODEL}{name}"]) for name in names
    }
    return recipe, merge_adapters(weights)


def _has(file: Path) -> bool:
    """Returns whether a file exists; raises `InputError` for a pipe, which would block, and for a folder."""
    if file.exists() and not file.is_file():
        raise invalid(file.name, "a regular file", str(file))
    return file.exists()
