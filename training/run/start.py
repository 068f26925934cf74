# SPDX-License-Identifier: Apache-2.0
"""The start of a run: a run that is finished, its data, its initial weights and its frozen layers.

data.json of a model_dir records the data of the run (`DataRecord`). The epoch of a step depends on the number
of pictures. A run therefore resumes on its own pictures only. With `--accept_new_data` it resumes on others:
an unfinished epoch starts over with these, the epochs before it count as completed, and the learning rate
continues from there. The count of steps continues.
"""

import dataclasses
import fnmatch
import functools
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lambdanet.backend import ENGINE, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core import onednn
from lambdanet.core.errors import InputError, invalid, unreadable
from lambdanet.models import zoo
from lambdanet.models.deeplab import HEAD
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.weights import pretrained, weight_files
from lambdanet.models.weights.trained_classes import names_of
from lambdanet.training.data.class_names import Classes
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.image_files import describe_content, fingerprint
from lambdanet.training.data.task import task_of
from lambdanet.training.run.checkpoints import (
    is_out_of_patience,
    read_best,
    read_newest,
)
from lambdanet.training.run.logs import read_history
from lambdanet.training.run.model_dir import (
    BEST,
    CHECKPOINTS,
    DATA,
    HISTORY,
    RECIPE,
    class_names,
    load_weights,
)


def find_finished(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Returns the report of a run that has nothing left to do, and prints a line; None where there is none.

    Its data and its model are not needed.

    Args:
      path: the model_dir.
      recipe: its recipe.
    """
    last = report(path, recipe)
    epoch = last["epoch"]
    since_best = epoch - last.get("best_epoch", epoch)
    is_over = epoch >= recipe.epochs or is_out_of_patience(recipe.patience, since_best)
    if not is_over or read_newest(path / CHECKPOINTS)[0] != last["step"]:
        return None
    print(
        f"finished already: {recipe.model} on {recipe.dataset} in {path}, {epoch} epochs, "
        f"step {last['step']}",
        flush=True,
    )
    return last


def report(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Returns the last row of the history, and the best epoch where a split is held out for it.

    Args:
      path: the model_dir.
      recipe: its recipe.

    Returns:
      A dict of `model_dir`, the `epoch` and `step` reached, 0 where there is no row, and the row.
    """
    last: dict[str, Any] = {"model_dir": str(path), "epoch": 0, "step": 0}
    for row in read_history(path / HISTORY)[-1:]:
        last |= {name: float(value) for name, value in row.items() if value}
        last |= {"epoch": int(row["epoch"]), "step": int(row["step"])}
    if recipe.held_out_split:
        epoch, accuracy = read_best(path / BEST)
        best = f"best_val_{task_of(recipe).best}"
        last |= {"best_epoch": epoch, best: accuracy}
    return last


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a run in its epochs."""

    position: int  # steps since their beginning
    epoch: int  # the number of complete epochs
    step: int  # the steps completed of the next one
    steps_left: int  # the steps that are left of it


class DataRecord(NamedTuple):
    """The data of a run, and the place from which it reads them."""

    steps_per_epoch: int
    # For each split, the number of pictures, and a digest of names, labels and sizes; empty: not recorded.
    splits: dict[str, list[Any]]
    held_out: Sequence[str] = ()  # as `Source.made_from_training`
    first_step: int = 0  # the first step on these data
    first_epoch: int = 0  # the number of epochs completed before it
    masks: Any = ()  # of each what `describe_content` returns
    # Whether TensorFlow computes by oneDNN; None: not recorded, or not TensorFlow.
    onednn: bool | None = None
    white_class: bool | None = False  # as `Source.white_class`; None: not decided
    colors: Any = None  # as `Source.colors`; None: not recorded

    def place(self, step: int) -> Place:
        """Returns the place of a step, as if the run had read these data from the beginning.

        With 2 steps per epoch from step 12 on, after 3 epochs of 4 steps, step 13 is at `Place(7, 3, 1, 1)`.
        """
        position = self.first_epoch * self.steps_per_epoch + step - self.first_step
        epoch, done = divmod(position, self.steps_per_epoch)
        return Place(position, epoch, done, self.steps_per_epoch - done)


def read_record(model_dir: str | Path) -> DataRecord:
    """Returns the record of the run in a model_dir, or an empty one where there is none.

    Raises:
      InputError: its data.json cannot be read.
    """
    file = Path(model_dir).expanduser() / DATA
    if not file.exists():
        return DataRecord(0, {}, white_class=None)
    try:
        return DataRecord(**json.loads(file.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise unreadable(file, error) from None


def describe(dataset: Dataset, before: DataRecord) -> DataRecord:
    """Returns the record of a run that begins with a dataset; `InputError` where its data are too few.

    Masks that are in the record from before, with the same size and times, are not read.
    """
    source = dataset.source
    record = DataRecord(
        dataset.steps_per_epoch,
        {},
        source.made_from_training,
        masks=[],
        onednn=onednn.is_used() if ENGINE == "tensorflow" else None,
        white_class=source.white_class,
        colors=list(source.colors),
    )
    known = {row[0]: row for row in before.masks}
    for split in (dataset.recipe.train_split, dataset.eval_split):
        files = source.files(split)
        record.splits[split] = [dataset.num_examples(split), fingerprint(files)]
        for _, label in files:
            if isinstance(label, str) and os.path.isfile(label):
                record.masks.append(describe_content(label, known))
    return record


def resume(
    path: Path,
    before: DataRecord,
    now: DataRecord,
    step: int,
    is_within_epoch: bool,
    accept_new: bool,
) -> DataRecord:
    """Returns the record with which a run goes on.

    Args:
      path: the model_dir.
      before: its record; an empty one, of an earlier version, is replaced with a line.
      now: the record of the data that are there, as of a new run.
      step: the number of steps completed.
      is_within_epoch: whether the last of them is of an epoch that has not ended with its evaluation.
      accept_new: whether the data may be others.

    Raises:
      InputError: the data are others.
    """
    if not before.splits:
        print(
            f"{path} is of an earlier version, which did not record its pictures: it goes on with those here",
            flush=True,
        )
        return now
    if before.splits != now.splits:
        changes = [
            f"{split} had {before.splits[split][0]}, now {number}"
            for split, (number, _) in now.splits.items()
        ]
    else:
        pairs = zip(before.masks, now.masks, strict=False)
        changes = [
            f"{new[0]!r} has other content" for old, new in pairs if old[2] != new[2]
        ][:1]
    if before.colors not in (None, now.colors):
        changes.append("the classes have other colors")
    if not changes:
        if len(before.masks) < len(now.masks):
            print(
                f"{path} has no record of its masks: it goes on with those here",
                flush=True,
            )
        began = onednn.is_default() if before.onednn is None else before.onednn
        if now.onednn not in (None, began):
            first, then = ("with", "without") if began else ("without", "with")
            print(
                f"{path} began {first} oneDNN and goes on {then}: "
                "its weights differ by rounding from those of one run; TF_ENABLE_ONEDNN_OPTS chooses",
                flush=True,
            )
        return before._replace(masks=now.masks, onednn=now.onednn, colors=now.colors)
    if not accept_new:
        start = shlex.quote(f"--set=start_from={path}")
        raise InputError(
            f"model_dir {str(path)!r} began with pictures of other names, labels, sizes or numbers, or with "
            f"other masks: {', '.join(changes)}; --accept_new_data goes on with these, "
            f"and {start} in another --model_dir starts from its weights"
        )
    epoch = before.place(step - is_within_epoch).epoch
    return now._replace(first_step=step, first_epoch=epoch)


def load_initial_weights(
    model: keras.Model,
    source: str | Path,
    zero_head: bool = False,
    classes: Classes | None = None,
) -> str:
    """Loads the weights of a model_dir, or the averages that it keeps, or the weights of a file.

    The columns of the classifier are matched with the classes by name (`Classes.columns_in`); classes that
    the weights do not have keep their initial weights.

    Args:
      model: the model to train.
      source: the weights, as for `find_initial_weights`.
      zero_head: whether the classifier gets zeros instead.
      classes: the classes of the data, in the order of the model's logits; None: only their number is known.

    Returns:
      A line that says what was kept of the classifier; empty where both have the same classes in one order.

    Raises:
      InputError: the weights are of another architecture, and the errors of `find_initial_weights`.
    """
    path = find_initial_weights(model.name, source)
    classes = classes or Classes("the data", model.output_shape[-1])
    owner = f"start_from {str(source)!r}"
    if path.is_dir():
        recipe, arrays = load_weights(path)
        if recipe.model != model.name:
            hint = "set model and model_options as in its recipe.json"
            raise invalid(f"model in {owner}", model.name, recipe.model, hint)
        line = _assign(model, arrays, classes, owner, class_names(path))
    else:
        arrays, metadata = weight_files.read_arrays(model, path)
        line = _assign(model, arrays, classes, owner, names_of(metadata))
    if not zero_head:
        return line
    for weight in model.get_layer(CLASSIFIER).weights:
        weight.assign(keras.ops.zeros_like(weight))
    return ""


def _assign(
    model: keras.Model,
    arrays: Mapping[str, np.ndarray],
    classes: Classes,
    owner: str,
    names: Sequence[str],
) -> str:
    """Assigns weights with the columns of the classifier that the classes have in it; returns the line.

    A DeepLab takes those of its backbone alone, where the weights are of a classifier.
    """
    head = {name for name in weight_files.weights_by_name(model) if HEAD in name}
    if head and head.isdisjoint(arrays):
        head |= weight_files.classifier(model).keys()
        weight_files.assign_weights(model, arrays, owner, head)
        return f"{owner}: the backbone has its weights, and the head starts with random ones"
    trained = Classes(owner, weight_files.count_classes(arrays), names)
    columns, line = classes.columns_in(trained)
    weight_files.assign_weights(
        model, weight_files.with_columns(model, arrays, columns), owner
    )
    return line


def find_initial_weights(
    model_name: str, source: str | Path, argument: str = "start_from", others: str = ""
) -> Path:
    """Returns the model_dir, or the file, that has initial weights; fetches those of the hub first.

    Args:
      model_name: the name of the model.
      source: a model_dir of `lambdanet train`, or weights as for `create_model`; published ones come first.
      argument, others: the name of the argument and what else it may be, as for `weight_files.find_file`.

    Raises:
      InputError: there are no such weights.
      ConnectionError: published weights are neither in the cache nor can be downloaded.
    """
    folder = Path(source).expanduser()
    if (folder / RECIPE).is_file() and not pretrained_weights.find(
        model_name, str(source)
    ):
        return folder
    others += "a model_dir of `lambdanet train`, "
    return pretrained.locate(
        model_name,
        source,
        functools.partial(zoo.create_model, model_name),
        argument,
        others,
    )


BACKBONE = "backbone"  # all layers but the classifier, and the head of a DeepLab


def frozen_layers(model: keras.Model, recipe: Recipe) -> list[keras.layers.Layer]:
    """Returns the layers that the recipe's `freeze` names.

    It has patterns, separated by commas. One, such as "stem*", "c2" or "c4_block1", matches the name of a
    layer, or its part before an underscore; "backbone" is all but the classifier. `InputError` where one
    matches no layer with weights, or all layers are frozen.
    """
    candidates = [layer for layer in model.layers if layer.weights]
    found: dict[str, keras.layers.Layer] = {}
    for pattern in filter(None, map(str.strip, recipe.freeze.split(","))):
        matching = {
            layer.name: layer for layer in candidates if _matches(layer.name, pattern)
        }
        if not matching:
            parts = dict.fromkeys(layer.name.partition("_")[0] for layer in candidates)
            raise invalid(
                "freeze",
                f"{BACKBONE}, or layers of {model.name} ({', '.join(parts)})",
                pattern,
            )
        found |= matching
    if len(found) == len(candidates):
        raise invalid("freeze", f"fewer than all layers of {model.name}", recipe.freeze)
    return list(found.values())


def _matches(name: str, pattern: str) -> bool:
    if pattern == BACKBONE:
        return name != CLASSIFIER and HEAD not in name
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(
        name, f"{pattern}_*"
    )
