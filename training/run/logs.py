# SPDX-License-Identifier: Apache-2.0
"""Logs of a training run: history.csv and its curves, TensorBoard, and the lines before its first step."""

import csv
import io
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe
from lambdanet.core import text_table
from lambdanet.core.errors import InputError, one_line
from lambdanet.core.files import write_atomic
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.task import task_of
from lambdanet.training.run.checkpoints import Logs
from lambdanet.training.run.devices import Devices
from lambdanet.training.run.model_dir import CURVES, RECIPE
from lambdanet.training.run.optimizers import inner

SECONDS_BETWEEN_DRAWINGS = 30


class HistoryFile(keras.callbacks.Callback):
    """Writes a CSV file with a row per epoch, counted from 1; a resumed run appends to its own rows.

    Draws its curves at most every `SECONDS_BETWEEN_DRAWINGS`, and adds `minutes_left` of the run to the logs,
    which Keras prints. Raises an `OSError` where the model_dir was deleted, before other callbacks create it
    again.

    Args:
      path: the file in the model_dir, rewritten after each epoch, without later rows of a killed run.
      recipe: the recipe of the run.
    """

    def __init__(self, path: Path, recipe: Recipe):
        super().__init__()
        self._path = path
        self._recipe = recipe
        self._rows = read_history(path)
        self._start = 0.0
        self._drawn = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        folder = self._path.parent
        if not (folder / RECIPE).exists():
            raise OSError(
                f"model_dir {str(folder)!r} was deleted, with the checkpoints in it"
            )
        now = time.monotonic()
        seconds = now - self._start
        row = {
            "epoch": epoch + 1,
            "step": int(self.model.optimizer.iterations.numpy()),
            "learning_rate": f"{learning_rate(self.model):.6g}",
            "seconds": f"{seconds:.2f}",
            **{name: f"{value:.6f}" for name, value in (logs or {}).items()},
        }
        self._rows = [before for before in self._rows if int(before["epoch"]) <= epoch]
        self._rows.append({name: str(value) for name, value in row.items()})
        write_atomic(self._path, text_table.to_csv(self._rows))
        left = self._recipe.epochs - epoch - 1
        if logs and left:
            logs["minutes_left"] = left * seconds / 60
        if now - self._drawn > SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            draw_curves(self._path, self._recipe)


def draw_curves(path: Path, recipe: Recipe) -> None:
    """Draws a history file: the loss and the metric of the task, in training and validation, as curves.png.

    Nothing is drawn where matplotlib is not installed. Another error is a line, because no run ends for a
    drawing.

    Args:
      path: the history file.
      recipe: the recipe of the run.
    """
    try:
        from matplotlib.figure import Figure  # which takes a second to import

        rows = read_history(path)
        if not rows:
            return
        epochs = [int(row["epoch"]) for row in rows]
        figure = Figure((10, 4))
        for place, name in ((121, "loss"), (122, task_of(recipe).best)):
            axes = figure.add_subplot(place, title=name, xlabel="epoch")
            for column, label in ((name, "training"), (f"val_{name}", "validation")):
                values = [float(row.get(column) or "nan") for row in rows]
                axes.plot(epochs, values, ".-", label=label)
            axes.locator_params(axis="x", integer=True)
            axes.legend()
        file = io.BytesIO()
        figure.savefig(file)
        write_atomic(path.with_name(CURVES), file.getvalue())
    except ModuleNotFoundError:
        return
    except Exception as error:
        print(f"{CURVES} is not drawn: {one_line(error)}", flush=True)


def learning_rate(model: keras.Model) -> float:
    """Returns the learning rate of the last step of a compiled model."""
    optimizer = inner(model.optimizer)  # whose `learning_rate` is that of the next step
    last = max(int(optimizer.iterations.numpy()) - 1, 0)
    return float(optimizer._learning_rate(last))


def read_history(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a history file; none where there is no file.

    Raises:
      InputError: the file is something else.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        epochs = [int(row["epoch"]) for row in rows]
        [float(value or 0) for row in rows for value in row.values()]
        if epochs != sorted(set(epochs)):
            raise ValueError("epochs out of order")
    except (csv.Error, KeyError, TypeError, ValueError):
        raise InputError(
            f"{str(path)!r} is not the history of a run, a CSV of numbers in UTF-8 with a column epoch, "
            "each once and in order; remove it to continue without it"
        ) from None
    return rows


SECONDS_BETWEEN_LINES = 20


class FirstStep(keras.callbacks.Callback):
    """Prints that the first step compiles, every `SECONDS_BETWEEN_LINES` for how long, and what it took.

    It is created before `fit`; `stop` ends its lines, also where the step fails.
    """

    takes_tensors = True

    def __init__(self) -> None:
        super().__init__()
        self._start = time.monotonic()
        self._end = threading.Event()
        self._lines = threading.Thread(target=self._print)
        self._lines.start()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if not self._end.is_set():
            self.stop()
            print(f"the first step took {self._seconds()}", flush=True)

    def stop(self) -> None:
        self._end.set()
        self._lines.join()

    def _print(self) -> None:
        print("compiling the first step, which may take minutes", flush=True)
        while not self._end.wait(SECONDS_BETWEEN_LINES):
            print(f"{self._seconds()} so far", flush=True)

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._start:.0f} s"


SPEED = "images_per_second"
MAX_PICTURES = 16
FEW_STEPS = 10


class Speed(keras.callbacks.Callback):
    """Adds `images_per_second` to the logs at the end of an epoch; `batch_size` is that of all devices.

    The first execution of an epoch is left out where there are more, because it may compile, or wait for the
    first images.
    """

    takes_tensors = True

    def __init__(self, batch_size: int):
        super().__init__()
        self._batch_size = batch_size
        # Seconds and steps at the beginning, and after the first and the last execution.
        self._ends: list[tuple[float, int]] = []

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._ends = [(time.perf_counter(), 0)]

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._ends[2:] = [(time.perf_counter(), batch + 1)]

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if len(self._ends) < 2 or logs is None:  # the epoch had no steps left
            return
        (begin, done), (end, steps) = self._ends[-2], self._ends[-1]
        if end > begin:
            logs[SPEED] = (steps - done) * self._batch_size / (end - begin)


class SkippedSteps(keras.callbacks.Callback):
    """Adds `skipped_steps` to the logs at the end of an epoch, with loss scaling: those of the run so far."""

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        optimizer = self.model.optimizer
        skipped = optimizer.iterations - inner(optimizer).iterations
        if logs is not None:
            logs["skipped_steps"] = float(skipped)


def show_pictures(folder: Path, images: Sequence[tf.Tensor]) -> None:
    """Writes the first 16 of pictures, uint8 [h, w, c], for TensorBoard."""
    if not images:
        return
    writer = tf.summary.create_file_writer(str(folder / "pictures"))
    with writer.as_default():
        tf.summary.image(
            "first_batch", tf.stack(images) / 255, step=0, max_outputs=MAX_PICTURES
        )
    writer.close()


def opening(
    dataset: Dataset, path: Path, devices: Devices, step: int, epoch: int, done: int
) -> list[str]:
    """Returns what a run begins with, or is resumed from.

    Args:
      dataset: the data, with the recipe.
      path: the model_dir.
      devices: the devices of the run.
      step: the number of steps completed.
      epoch: the number of epochs completed.
      done: the number of steps completed of the next one.

    Returns:
      One line for a worker that is not the chief.
    """
    if not devices.chief:
        return [f"worker {devices.worker} of {devices.workers}, from 0, at step {step}"]
    recipe = dataset.recipe
    steps = dataset.steps_per_epoch
    name = f"{recipe.model} on {recipe.dataset} in {path}"
    if step == 0:
        start = f"training {name}: {recipe.epochs} epochs of {steps} steps"
    else:
        within = f" and {done} of {steps} steps" if done else ""
        start = f"resuming {name} after epoch {epoch} of {recipe.epochs}{within}, step {step}"
    lines = [
        start,
        f"{dataset.num_examples(recipe.train_split)} pictures in {recipe.train_split}, "
        f"{dataset.num_examples(dataset.eval_split)} in {dataset.eval_split}",
        *_extremes(dataset),
        _batches(recipe, devices),
        _loss(recipe),
    ]
    for name, weights in (
        ("weights of the classes", dataset.class_weights),
        ("factors where they are present", dataset.positive_weights),
    ):
        pairs = zip(dataset.class_names, weights, strict=False)
        shown = [f"{name} {weight:.3g}" for name, weight in pairs]
        if shown:
            lines.append(f"{name}: {', '.join(shown)[:200]}")
    if steps < FEW_STEPS:
        line = f"an epoch has fewer than {FEW_STEPS} steps: a smaller global_batch_size"
        if recipe.task == "segmentation":
            line += ", or a larger windows_per_image,"
        lines.append(f"{line} gives more")
    return lines


def _extremes(dataset: Dataset) -> Iterator[str]:
    """Yields a line on the largest and smallest class of training, where they are known before reading."""
    source = dataset.source
    files = source.files(dataset.recipe.train_split)
    counts = Counter(label for _, label in files if isinstance(label, int))
    found = counts.most_common()
    if found:
        (most, high), (least, low) = found[0], found[-1]
        names = source.class_names
        yield f"the largest class is {names[most]} with {high}, the smallest {names[least]} with {low}"


def _batches(recipe: Recipe, devices: Devices) -> str:
    batch = recipe.global_batch_size
    replicas = devices.replicas
    windows = recipe.windows_per_image
    unit = f"windows, {windows} per image and epoch" if windows > 1 else "images"
    parts = [f"batches of {batch} {unit}"]
    if replicas > 1:
        parts.append(f", {batch // replicas} on each of {replicas} devices")
    if devices.workers > 1:
        parts.append(f" of {devices.workers} machines")
    if recipe.num_pseudo_labels:
        parts.append(f", {recipe.num_pseudo_labels} of them with pseudo-labels")
    verb = "rises to" if recipe.warmup_epochs else "begins at"
    rate = f"the learning rate {verb} {recipe.learning_rate:g}"
    return f"{''.join(parts)}, in {recipe.compute_dtype}; {rate}"


def _loss(recipe: Recipe) -> str:
    smoothing = recipe.label_smoothing
    decay = recipe.weight_decay
    place = ", each step" if recipe.decays_in_steps else " and"
    return f"the loss has label smoothing of {smoothing:g}{place} weight decay of {decay:g}"
