# SPDX-License-Identifier: Apache-2.0
"""Interruptions and comparisons of training runs."""

import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from helpers import assert_equal_arrays

from lambdanet import configs
from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import InputError, Preempted
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import build, checkpoints, logs, model_dir
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.train import train

ON_TENSORFLOW = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="needs TensorFlow"
)


def recipe_with(name: str, **changes: Any) -> Recipe:
    """Returns a recipe with other values of some fields."""
    return replace(configs.get_recipe(name), **changes)


def open_dataset(
    recipe: Recipe,
    root: Path | str,
    bad_records: BadRecords | None = None,
    **changes: Any,
) -> Dataset:
    """Opens the dataset in a folder by a recipe with other values of some fields."""
    recipe = replace(recipe, **changes)
    return Dataset.open(recipe, str(root), bad_records)


def check_said(
    dataset: Dataset, capture: pytest.CaptureFixture[str], compare: bool = True
) -> str:
    """Returns what the check of a dataset prints, or its error."""
    capture.readouterr()
    try:
        dataset.check(compare)
    except InputError as error:
        return str(error)
    return capture.readouterr().out


# Three epochs of four steps.
SHORT = recipe_with(
    "digits",
    epochs=3,
    train_split="train[:64]",
    eval_split="test[:24]",
    global_batch_size=16,
    input_size=16,
)
# The same on pictures in folders, with a split for the best epoch.
IN_FOLDERS = replace(
    SHORT,
    dataset="folder",
    num_classes=0,
    mean=(0.5,) * 3,
    std=(0.25,) * 3,
    train_split="train",
    eval_split="validation",
    held_out_split="validation",
)
# Of single steps: with one rate, and without decay.
CONSTANT = recipe_with(
    "digits",
    schedule="constant",
    warmup_epochs=0,
    weight_decay=0.0,
    global_batch_size=8,
)
# The names of the files of a run, in their order.
RUN_FILES = [
    "checkpoints",
    "classes.txt",
    "curves.png",
    "data.json",
    "data_dir.txt",
    "history.csv",
    "logs",
    "recipe.json",
]
TIMES = {"seconds", "images_per_second"}
# The normalization of models that are exported.
MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.25, 0.3)


def act_at(
    patch: pytest.MonkeyPatch,
    steps: Collection[int],
    action: Callable[[], object],
    event: str = "on_train_batch_end",
) -> None:
    """Makes runs do something after batches of these steps, before a checkpoint is written.

    The steps are counted as the callback does: the variable of the optimizer may have another one yet.
    """
    original = getattr(checkpoints.SaveCheckpoints, event)
    is_training = event == "on_train_batch_end"

    def act(self, batch, logs=None):
        step = self._first_step + batch + 1 if is_training else self._step
        if step in steps:
            self.model.optimizer.iterations.numpy()  # waits until JAX has computed
            action()
        original(self, batch, logs)

    patch.setattr(checkpoints.SaveCheckpoints, event, act)


def send_sigterm() -> None:
    """Sends SIGTERM to this process, as the owner of a preempted machine does."""
    signal.raise_signal(signal.SIGTERM)


def assert_resumes(
    whole: Path,
    path: Path,
    recipe: Recipe,
    data_dir: str | None = None,
    **steps: int,
) -> None:
    """Asserts that a run that is stopped by SIGTERM, and resumed, equals one that was not.

    Args:
      whole: the folder of the other run.
      path: that of this one.
      recipe: that of both.
      data_dir: the folder of the data.
      **steps: the step at which it is stopped, by each event of a callback.
    """
    for event, step in steps.items():
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Preempted):
            act_at(patch, [step], send_sigterm, event)
            train(recipe, path, data_dir)
    train(recipe, path, data_dir)
    assert_same_run(path, whole)


def write_run(
    path: Path,
    recipe: Recipe,
    class_names: Sequence[str] = (),
    data_dir: str | None = None,
) -> keras.Model:
    """Writes the folder of a run without training, and returns its model.

    Noise is added to all weights, some of which would be 0, so that the outputs depend on each of them. It is
    so small that the logits are about 1.
    """
    model_dir.claim(path, recipe, class_names, data_dir)
    keras.utils.set_random_seed(0)
    model = build.build_model(recipe)
    random = np.random.default_rng(0)
    model.set_weights(
        [
            weight + 0.03 * random.normal(size=weight.shape)
            for weight in model.get_weights()
        ]
    )
    optimizer = build.build_optimizer(recipe, model.weights, 1)
    Checkpoints(path / "checkpoints", model, optimizer).save(1)
    return model


def run_exported(folder: Path, images: np.ndarray, format: str = "litert"):
    """Returns the outputs of an exported model for pictures."""
    # Here, as it needs TensorFlow.
    from lambdanet.training.serving import export_runtimes, exported_model

    if format == "saved_model":
        loaded = exported_model.load_classifier(folder)
        return loaded.signatures["serving_default"](images=images)
    chosen = export_runtimes.FORMATS[format]
    return chosen.load((folder / chosen.file).read_bytes())(images)


def write_runtime(
    model,
    out,
    class_names,
    format="litert",
    pictures=None,
    calibration=None,
    input_size=20,
    mean=MEAN,
    std=STD,
    **options,
):
    """Writes a model for a runtime, and returns its comparison with Keras."""
    from lambdanet.models.preprocessing import Preprocessing
    from lambdanet.training.serving import export_runtimes
    from lambdanet.training.serving.export import Options
    from lambdanet.training.serving.trained_weights import TrainedModel

    trained = TrainedModel(model, Preprocessing(input_size, mean, std), class_names)
    chosen = Options(format, **options)
    return export_runtimes.write(trained, out, chosen, pictures, calibration)


def assert_same_run(left: Path, right: Path) -> None:
    """Asserts that two runs have the same trained weights and the same history, except for its times."""
    assert_equal_arrays(weights(left), weights(right))
    assert _results(left) == _results(right)


def _results(path: Path) -> list[list[str]]:
    rows = logs.read_history(path / model_dir.HISTORY)
    return [[row[name] for name in sorted(row.keys() - TIMES)] for row in rows]


def weights(path: Path) -> list[np.ndarray]:
    """Returns the weights of the trained model of a run."""
    return model_dir.load_trained_model(path)[0].get_weights()


def times_of_files(path: Path) -> dict[Path, int]:
    """Returns when each file in a folder was last changed."""
    return {file: file.stat().st_mtime_ns for file in path.rglob("*")}


def saved_steps(path: Path) -> list[int]:
    """Returns the steps of the checkpoints of a run."""
    return sorted(
        int(file.stem.removeprefix("ckpt-"))
        for file in path.glob("checkpoints/ckpt-*.npz")
    )
