# SPDX-License-Identifier: Apache-2.0
"""Trains a recipe in a folder; the same call again resumes an interrupted run."""

import contextlib
from pathlib import Path
from typing import Any

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import invalid
from lambdanet.files import locked
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.class_names import Classes, read_class_map
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.create_devices import create_devices
from lambdanet.training.run.preemption import StopRequest
from lambdanet.training.run.run import Run, TrainOptions


def train(
    recipe: Recipe,
    model_dir: str | Path,
    data_dir: str | None = None,
    class_map: str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Trains a recipe with `keras.Model.fit`, from the newest checkpoint in its folder if there is one.

    On a CPU, the same recipe gives the same weights each time, also when the run is interrupted in between.
    With a held-out split in the recipe, the run is validated on that split,
    keeps its best epoch as well, in `best/`, and ends after `patience` epochs without a better one.

    Args:
      recipe: the recipe.
      model_dir: the folder for the recipe, the checkpoints and the logs of the run.
      data_dir: the folder of TFDS, or of the pictures or records; None: the run's, if `model_dir` has
        one, else the default of TFDS, `~/tensorflow_datasets`.
      class_map: a file with the names of the classes in the order of their labels, one per line, as timm's;
        None: those of the run, if `model_dir` has one, else the order of the data.
      **options: the attributes of `TrainOptions`, such as `save_every` and `distribute`.

    Returns:
      A dict of `model_dir`, the `epoch` and `step` reached, and the last row of the history: `loss`,
      `accuracy`, `val_loss`, `val_accuracy`, `learning_rate`, `seconds`.

    Raises:
      InputError: the recipe, an option, a folder or the dataset cannot be used, another run uses
        `model_dir`, or the loss is no longer finite.
      Preempted: the run received SIGTERM or Ctrl-C and is saved, or another worker was lost.
      OSError: `model_dir` can no longer be written; the last checkpoint is kept.

    Example:
      >>> train(configs.get_recipe("digits"), "runs/digits", save_every=100)["val_accuracy"]
    """
    chosen = TrainOptions(**options)
    if recipe.zero_head and not recipe.start_from:
        raise invalid(
            "start_from",
            "weights to fine-tune, with zero_head",
            "",
            "--set=start_from=MODEL_DIR",
        )
    bad_records = BadRecords(chosen.max_bad_records)
    path = model_dirs.check_model_dir(model_dir)  # before anything that takes time
    data_dir = model_dirs.find_data_dir(path, data_dir)
    devices = create_devices(chosen.distribute, recipe.global_batch_size, chosen.tpu)
    lock = locked(path) if devices.chief else contextlib.nullcontext()
    with devices.raise_if_worker_lost(), lock, devices.scope():
        with devices.chief_first():
            classes = model_dirs.classes_of(path)
            if class_map is not None:
                names = read_class_map(class_map)
                classes = Classes(f"class_map {str(class_map)!r}", len(names), names)
            held_out = recipe.held_out_split or None
            dataset = Dataset.open(recipe, data_dir, bad_records, held_out, classes)
            model_dirs.check_model_dir(path, dataset.recipe)
            model_dirs.check_class_names(path, dataset.class_names)
            dataset.check()
        run = Run(dataset, path, devices, chosen)
        run.restore()
        with StopRequest() as stop, bad_records.as_input_errors():
            run.fit(stop)
    return run.report()
