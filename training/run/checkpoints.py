# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: a file of arrays per step, the same on TensorFlow and JAX.

In this order: the files (`Checkpoints`); the callbacks of a run that write them, after steps and epochs
(`SaveCheckpoints`) and for the best epoch (`BestEpoch`), or evaluate the averages in them
(`AveragedEvaluation`).
"""

import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.backend import ENGINE, compat, keras
from lambdanet.backend.strategies import SEEDS
from lambdanet.core.errors import InputError, Preempted, invalid, one_line
from lambdanet.core.files import atomic_file, write_atomic
from lambdanet.training.data.task import Task
from lambdanet.training.run.devices import ONE_DEVICE, Devices
from lambdanet.training.run.stop_request import StopRequest

MAX_TO_KEEP = 3
# Names in a checkpoint, or their beginnings.
MODEL = "model/"
AVERAGE = "average/"
OPTIMIZER = "optimizer/"
SUMS = "sums"
BEST_EPOCH = "best.json"  # beside the checkpoint of the best epoch
AGREE_EVERY = 10  # steps after which several workers agree on whether to stop

Logs = dict[str, Any] | None  # that Keras gives to callbacks

_DAMAGED = (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error)


class Checkpoints:
    """The checkpoints of a model and its optimizer, numbered by the steps completed.

    A checkpoint is a NumPy archive of the variables of the model and the optimizer by name. It is written
    completely or not at all, has a CRC-32 per array, and is checked before anything is restored.

    Args:
      directory: the folder, created with the first checkpoint.
      model: a built model.
      optimizer: its optimizer, of `build_optimizer`.
      devices: the devices of the run; all workers take part in saving, the chief writes.
      max_to_keep: the number of checkpoints to keep, the newest.

    Attributes:
      sums: the variables of the metrics since the start of the epoch, such as the sum and the count of the
        loss, float32 [n]; 0 once it is evaluated.

    Example:
      >>> optimizer = build_optimizer(recipe, model.weights, steps_per_epoch=10)
      >>> checkpoints = Checkpoints("checkpoints", model, optimizer)
      >>> checkpoints.save(step=1)
      >>> checkpoints.restore()
      1
    """

    def __init__(
        self,
        directory: str | Path,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        devices: Devices = ONE_DEVICE,
        max_to_keep: int = MAX_TO_KEEP,
    ):
        self.directory = Path(directory)
        self.model = model
        self.optimizer = optimizer
        self.devices = devices
        self.sums = np.zeros(1, np.float32)
        self._max_to_keep = max_to_keep
        self._kept: list[Any] = []  # the weights, while averages are in their place
        # Pairs of a weight and its moving average, where the optimizer keeps them.
        self.averages = list(zip(model.weights, optimizer.averages, strict=False))

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints on disk, in order."""
        return _steps(self.directory)

    def save(self, step: int) -> None:
        """Writes the checkpoint after a step and removes all but the newest.

        Raises:
          OSError: the file cannot be written, or the model_dir was deleted.
        """
        sync(self.model)
        arrays: dict[str, Any] = {
            name: variable.numpy() for name, variable in self._variables().items()
        }
        arrays[SUMS] = self.sums
        # Took part: variables with a value per device were averaged.
        if not self.devices.chief:
            return
        failure = f"cannot write the checkpoint of step {step}"
        folder = self.directory
        if not folder.parent.is_dir():
            raise OSError(f"{failure}: {str(folder.parent)!r} was deleted")
        try:
            folder.mkdir(exist_ok=True)
            with (
                atomic_file(_path(folder, step)) as unfinished,
                unfinished.open("wb") as file,
            ):
                np.savez(file, **arrays)
        except OSError as error:
            raise OSError(f"{failure}: {error}") from None
        for old in self.steps()[: -self._max_to_keep]:
            _path(folder, old).unlink(missing_ok=True)

    def restore(self, newest: tuple[int, dict[str, np.ndarray]] | None = None) -> int:
        """Restores the newest checkpoint that can be read, and prints which ones cannot.

        Args:
          newest: the result of `read_newest` for the folder; None: it is read here.

        Returns:
          The steps completed; 0 where there is no checkpoint.

        Raises:
          InputError: the checkpoint is of another model or optimizer, no checkpoint can be read, or workers
            found different ones.
        """
        step, arrays = newest or read_newest(self.directory)
        if step:
            if self.averages:
                # Earlier checkpoints have no averages of batch statistics.
                statistics = {
                    name.replace(MODEL, AVERAGE, 1): array
                    for name, array in arrays.items()
                    if "/moving_" in name
                }
                arrays = statistics | arrays
            self._check_fit(_path(self.directory, step), arrays)
            for name, variable in self._variables().items():
                variable.assign(arrays[name])
            self.sums = arrays[SUMS]
        if self.devices.workers_differ(step):
            found = (
                f"the newest checkpoint here is of step {step}, elsewhere of another"
            )
            raise invalid(
                "model_dir",
                "a folder shared by all machines",
                str(self.directory.parent),
                found,
            )
        return step

    def use_averages(self) -> None:
        """Replaces the weights by their moving averages, until `use_weights`."""
        self._kept = [keras.ops.copy(weight) for weight, _ in self.averages]
        for weight, average in self.averages:
            # On JAX, two variables must not share an array.
            weight.assign(keras.ops.copy(average))

    def use_weights(self) -> None:
        """Undoes `use_averages`, if it was called."""
        for (weight, _), kept in zip(self.averages, self._kept, strict=False):
            weight.assign(kept)
        self._kept = []

    def all_finite(self) -> bool:
        """Returns whether all weights and variables of the optimizer are finite."""
        sync(self.model)
        floats = [v for v in self._variables().values() if "float" in v.dtype]
        return all(
            bool(keras.ops.all(keras.ops.isfinite(variable))) for variable in floats
        )

    def _variables(self) -> dict[str, Any]:
        """Returns the variables of the model and of the optimizer by their names in a checkpoint."""
        averages = {
            f"{AVERAGE}{compat.variable_name(weight)}": average
            for weight, average in self.averages
        }
        averaged = set(map(id, averages.values()))
        others = [v for v in self.optimizer.variables if id(v) not in averaged]
        seeds = [
            variable for variable in self.model.variables if SEEDS in variable.path
        ]
        weights = [
            variable for variable in self.model.variables if SEEDS not in variable.path
        ]
        return {
            **{
                f"{MODEL}{compat.variable_name(variable)}": variable
                for variable in weights
            },
            # Keras counts in the process
            **{f"{SEEDS}/{number}": seed for number, seed in enumerate(seeds)},
            **averages,
            **{f"{OPTIMIZER}{variable.path}": variable for variable in others},
        }

    def _check_fit(self, path: Path, arrays: dict[str, np.ndarray]) -> None:
        expected = self._variables()
        problems = []
        for name, variable in expected.items():
            shape = tuple(variable.shape)
            if name not in arrays:
                problems.append(f"it lacks {name} {shape}")
            elif arrays[name].shape != shape:
                problems.append(
                    f"{name} is {arrays[name].shape} there and {shape} in the model"
                )
        # Earlier checkpoints have what the optimizer does not keep of frozen weights.
        others = sorted(
            name
            for name in arrays.keys() - expected.keys() - {SUMS}
            if not name.startswith(OPTIMIZER)
        )
        problems += [f"it also holds {name} {arrays[name].shape}" for name in others]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            what = f"{self.model.name} with {self.optimizer.name}"
            raise InputError(
                f"checkpoint {str(path)!r} is not of {what}: {problems[0]}{more}"
            )


def read_newest(
    directory: Path, remedy: str = "to start again"
) -> tuple[int, dict[str, np.ndarray]]:
    """Reads the newest checkpoint that can be read, and prints which ones cannot; `InputError` if none can.

    Returns the steps completed, and the arrays by name; 0 and none where there is no checkpoint. `remedy` is
    what a removal of the folder is for.
    """
    for step in reversed(_steps(directory)):
        try:
            # `np.load` leaves damaged ones open
            with (path := _path(directory, step)).open("rb") as file:
                return step, dict(np.load(file))
        except _DAMAGED as error:
            print(
                f"checkpoint {path} is damaged ({one_line(error)})",
                flush=True,
            )
    if _steps(directory):
        raise InputError(
            f"no checkpoint in {str(directory)!r} can be read; remove that folder {remedy}"
        )
    return 0, {}


def _steps(directory: Path) -> list[int]:
    found = (path.stem.removeprefix("ckpt-") for path in directory.glob("ckpt-*.npz"))
    return sorted(int(number) for number in found if number.isdigit())


def _path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step}.npz"


def sync(model: keras.Model) -> None:
    """Gives the variables of a model their current values, in a callback of `fit` or `evaluate`.

    On JAX, `fit` takes the values out of the variables, and each step overwrites those of the one before.
    """
    if ENGINE == "jax":
        model.jax_state_sync()


def remove_unfinished(directory: Path) -> None:
    """Removes checkpoints that were interrupted by the end of the process."""
    for path in directory.glob(".ckpt-*.partial"):
        path.unlink(missing_ok=True)


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint after each epoch, every `save_every` steps within it, and before the run stops.

    It is the last callback of a run, so that all that happens before a checkpoint is recorded.

    Args:
      checkpoints: the checkpoints of the run; within an epoch, they also hold the sums of the metrics.
      save_every: steps between two checkpoints within an epoch.
      stop: the request to stop; a single worker also stops within an evaluation, which is repeated later.
    """

    takes_tensors = True

    def __init__(self, checkpoints: Checkpoints, save_every: int, stop: StopRequest):
        super().__init__()
        self._sums = checkpoints.sums  # of the epoch, also while it is evaluated
        self._checkpoints = checkpoints
        self._save_every = save_every
        self._stop = stop
        self._step = 0
        self._first_step = 0  # first step of this (possibly resumed) epoch
        self._stopping = False  # agreed on by all workers

    def on_train_begin(self, logs: Logs = None) -> None:
        self._step = int(self.model.optimizer.iterations.numpy())

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._first_step = self._step
        variables = self.model.metrics_variables
        ends = np.cumsum([math.prod(variable.shape) for variable in variables])
        # 0, unless the epoch had begun.
        sums = np.split(np.resize(self._checkpoints.sums, ends[-1]), ends[:-1])
        for variable, values in zip(variables, sums, strict=True):
            variable.assign(values.reshape(variable.shape))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        # The optimizer may not have it yet.
        before = self._step
        self._step = self._first_step + batch + 1
        due = self._step // self._save_every > before // self._save_every
        alone = self._checkpoints.devices.workers == 1
        if alone or self._step // AGREE_EVERY > before // AGREE_EVERY:
            self._stopping = self._checkpoints.devices.any_worker(self._stop.received)
        ended = batch + 1 == self.params["steps"]
        if not (due or self._stopping or ended):
            return
        variables = self.model.metrics_variables
        sums = [np.ravel(variable.numpy()) for variable in variables]
        self._sums = np.concatenate(sums).astype(np.float32)
        # At the end of an epoch, the evaluation comes first.
        if not ended and math.isfinite(float((logs or {})["loss"])):
            self._checkpoints.sums = self._sums
            self._save()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._stop.received and self._checkpoints.devices.workers == 1:
            self._stopping = True
            sync(self.model)
            self._checkpoints.use_weights()
            self._checkpoints.sums = self._sums
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._stopping = self._checkpoints.devices.any_worker(self._stop.received)
        self._checkpoints.sums = np.zeros_like(self._sums)
        self._save()

    def _save(self) -> None:
        self._checkpoints.save(self._step)
        if self._stopping:
            raise Preempted(
                f"stopped by {self._stop.name} at step {self._step}, which is saved; "
                "the same command resumes there",
                self._stop.status,
            )


class AveragedEvaluation(keras.callbacks.Callback):
    """Evaluates the moving averages of the weights, and continues to train with the weights themselves.

    Keras 3.15's `SwapEMAWeights` computes the weights of training back, and changes half of them by rounding.
    """

    def __init__(self, checkpoints: Checkpoints):
        super().__init__()
        self._checkpoints = checkpoints

    def on_test_begin(self, logs: Logs = None) -> None:
        self._checkpoints.use_averages()

    def on_test_end(self, logs: Logs = None) -> None:
        self._checkpoints.use_weights()


class BestEpoch(keras.callbacks.Callback):
    """The best epoch of a run so far, which a resumed run reads from its file.

    At the end of each epoch, it saves the weights if they are better than all before, and stops the run when
    it is out of patience.

    Args:
      checkpoints: the checkpoints in a folder of their own, of which one is kept.
      patience: the number of epochs without a better one after which the run ends; 0: it never does.
      task: the task of the run, which says what the best epoch has the most of.
    """

    def __init__(self, checkpoints: Checkpoints, patience: int, task: Task):
        super().__init__()
        self._task = task
        self._checkpoints = checkpoints
        self._patience = patience
        self._file = checkpoints.directory / BEST_EPOCH
        self.epoch, self.accuracy = read_best(checkpoints.directory)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        accuracy = (logs or {})[f"val_{self._task.best}"]
        if accuracy > self.accuracy:
            self._keep(epoch + 1, accuracy)
        if is_out_of_patience(self._patience, epoch + 1 - self.epoch):
            self.model.stop_training = True

    def _keep(self, epoch: int, accuracy: float) -> None:
        self.epoch = epoch
        self.accuracy = accuracy
        step = int(self.model.optimizer.iterations.numpy())
        self._checkpoints.save(step)
        if self._checkpoints.devices.chief:
            kept = {"epoch": epoch, "step": step, "accuracy": accuracy}
            kept |= self._task.describe_best(self.model)
            write_atomic(self._file, json.dumps(kept) + "\n")


def is_out_of_patience(patience: int, epochs: int) -> bool:
    """Returns whether a run ends after epochs without a better one; with a patience of 0, never."""
    return 0 < patience <= epochs


def read_best(directory: Path) -> tuple[int, float]:
    """Returns the best epoch in the folder `best` of a run, from 1, and its accuracy; 0 where there is none.

    Raises:
      InputError: its file is damaged.
    """
    file = directory / BEST_EPOCH
    if not file.exists():
        return 0, float("-inf")
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return int(kept["epoch"]), float(kept["accuracy"])
    except (
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"{str(file)!r} cannot be read: {error}; remove it to continue"
        ) from None
