# SPDX-License-Identifier: Apache-2.0
"""The folder of one training run: what lies in it, who may write to it, and the trained model in it.

recipe.json   the recipe of the run, with every field     checkpoints/  the newest checkpoints
history.csv   a row for each epoch                         logs/         what TensorBoard reads
classes.txt   the name of each class, in the order of the labels
data_dir.txt  the folder of the data, where training was given one
best/         the checkpoint of the best epoch, where the recipe has a held-out split
.lock         the process that trains, while it does
"""

import os
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from lambdanet.configs import recipe as recipes
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError
from lambdanet.files import absolute
from lambdanet.training.data import class_names as classes
from lambdanet.training.run.build import build_model, build_optimizer
from lambdanet.training.run.checkpoints import Checkpoints, remove_unfinished

RECIPE = "recipe.json"
CHECKPOINTS = "checkpoints"
BEST = "best"
HISTORY = "history.csv"
LOGS = "logs"
CLASSES = "classes.txt"
DATA_DIR = "data_dir.txt"


def check(model_dir: str | Path, recipe: Recipe | None = None) -> Path:
    """Returns the path of a model_dir in which this recipe, or any, may be trained; writes nothing.

    Raises:
      InputError: it cannot be written, or another recipe was trained there.
    """
    path = Path(model_dir).expanduser()
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise InputError(f"model_dir {str(path)!r} cannot be written: {str(there)!r} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(
            f"model_dir {str(path)!r} cannot be written: no permission to write to {str(there)!r}"
        )
    if recipe and _has(path / RECIPE):
        _refuse_other(path, recipes.differences(load_recipe(path), recipe))
    return path


def claim(
    model_dir: str | Path, recipe: Recipe, class_names: Sequence[str] = (), data_dir: str | None = None
) -> Path:
    """Makes the folder of a run with its recipe in it; one that is there must be of this recipe.

    Args:
      model_dir: any folder; missing parents are made.
      recipe: what will be trained in it.
      class_names: kept with it, and compared as the recipe is; none are kept where there are none.
      data_dir: kept for `find_data_dir`; None: what was kept before stays.

    Returns:
      The path of the folder.

    Raises:
      InputError: it cannot be written, or another recipe was trained there, with each field that differs.

    Example:
      >>> claim("/tmp/digits", configs.get_recipe("digits"))
      PosixPath('/tmp/digits')
    """
    path = check(model_dir, recipe)
    check_class_names(path, class_names)
    texts = {CLASSES: "".join(f"{name}\n" for name in class_names), RECIPE: recipes.to_json(recipe)}
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            if text and not _has(path / name):
                write_text(path / name, text)
        for name in (CHECKPOINTS, BEST):
            remove_unfinished(path / name)
        if data_dir is not None and absolute(data_dir) != _kept_data_dir(path):
            write_text(path / DATA_DIR, f"{absolute(data_dir)}\n")
    except OSError as error:
        raise InputError(f"model_dir {str(path)!r} cannot be written: {error}") from None
    return path


def find_data_dir(model_dir: str | Path, data_dir: str | None = None) -> str | None:
    """Returns the folder of the data: `data_dir` if given, else the absolute path that training has kept.

    None, the default of TFDS, where training was given none, or was of a version that did not keep it.

    Raises:
      InputError: the folder that training kept is gone.
    """
    kept = None if data_dir is not None else _kept_data_dir(Path(model_dir).expanduser())
    if kept and not tf.io.gfile.isdir(kept):
        raise InputError(
            f"data_dir must be given: {str(model_dir)!r} was trained on {kept!r}, which is not a directory"
        )
    return kept or data_dir


def _kept_data_dir(path: Path) -> str | None:
    file = path / DATA_DIR
    return file.read_bytes().decode(errors="replace").removesuffix("\n") if _has(file) else None


def class_names(model_dir: str | Path) -> list[str]:
    """Returns the names of the classes that were trained in a model_dir; none where they were not kept.

    Raises:
      InputError: they cannot be read, or are not one per class of the recipe.
    """
    path = Path(model_dir).expanduser()
    names = classes.read(path / CLASSES) if _has(path / CLASSES) else []
    count = load_recipe(path).num_classes if names and _has(path / RECIPE) else 0
    if count not in (0, len(names)):
        raise InputError(f"{str(path / CLASSES)!r} must have {count} lines, one per class, got {len(names)}")
    return names


def check_class_names(model_dir: str | Path, names: Sequence[str]) -> None:
    """Refuses data whose classes are not those that were trained in a model_dir.

    Raises:
      InputError: with the first class that differs.
    """
    kept = class_names(model_dir)
    if kept and names:
        classes.check_equal(names, kept, "the data", repr(str(model_dir)))


def load_recipe(model_dir: str | Path) -> Recipe:
    """Returns the recipe that was trained in a model_dir.

    Raises:
      InputError: no such folder, or no readable recipe in it.
    """
    path = Path(model_dir).expanduser()
    if not path.is_dir():
        raise InputError(
            f"model_dir {str(path)!r} is not a directory; accepted: one that `lambdanet train` made"
        )
    if not _has(path / RECIPE):
        raise InputError(
            f"model_dir {str(path)!r} holds no {RECIPE}; accepted: one that `lambdanet train` made"
        )
    try:
        return recipes.from_json((path / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no permission, no text, no JSON, or no recipe
        raise InputError(f"{str(path / RECIPE)!r} cannot be read: {error}") from None


def load_trained_model(model_dir: str | Path) -> tuple[keras.Model, Recipe]:
    """Returns the model trained in a model_dir, and its recipe.

    The weights are those of the newest checkpoint that can be read, or with `held_out_split` in the recipe
    those of the best epoch; with `ema_decay`, their moving averages.

    Raises:
      InputError: no model_dir, no checkpoint in it, or one that is not of the recipe's model.

    Example:
      >>> model, recipe = load_trained_model("/tmp/digits")
    """
    recipe = load_recipe(model_dir)
    model = build_model(recipe)
    best = Path(model_dir).expanduser() / BEST
    directory = best if best.is_dir() else best.with_name(CHECKPOINTS)
    checkpoints = Checkpoints(directory, model, build_optimizer(recipe, steps_per_epoch=1))
    if checkpoints.restore() == 0:
        raise InputError(
            f"no checkpoint in {str(directory)!r}; accepted: a model_dir trained for an epoch or more"
        )
    if recipe.ema_decay:
        checkpoints.use_averages()
    return model, recipe


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all: to a file beside it, which then takes its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _has(file: Path) -> bool:
    """Returns whether a file exists; refuses a pipe, which would be waited for, or a folder in its place."""
    if file.exists() and not file.is_file():
        raise InputError(f"{file.name} must be a regular file, got {str(file)!r}")
    return file.exists()


def _refuse_other(path: Path, differences: dict[str, tuple[object, object]]) -> None:
    if differences:
        fields = "; ".join(
            f"{field} is {old!r} there and {new!r} here" for field, (old, new) in differences.items()
        )
        raise InputError(f"model_dir {str(path)!r} was made with another recipe: {fields}")
