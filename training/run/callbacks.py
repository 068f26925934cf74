# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks of a training run: they guard it, record it and save it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, Preempted
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.checkpoints import Checkpoints, sync
from lambdanet.training.run.history import HistoryFile, learning_rate
from lambdanet.training.run.preemption import StopRequest
from lambdanet.training.run.tensorboard import Dashboard, Speed

AGREE_EVERY = 10  # steps after which several workers agree on whether to stop


def create_callbacks(
    recipe: Recipe,
    path: Path,
    checkpoints: Checkpoints,
    initial_step: int,
    steps: int,
    save_every: int,
    stop: StopRequest,
    own: Sequence[keras.callbacks.Callback] = (),
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a run in the order in which they have to act.

    The guard is the first, so that nothing diverged is recorded; the checkpoint is the last, so that
    everything before a checkpoint is recorded.

    Args:
      recipe: the recipe.
      path: the model_dir.
      checkpoints: the checkpoints of the run. The chief alone of several workers writes files.
      initial_step: the number of steps completed.
      steps: steps per epoch.
      save_every: steps between two checkpoints within an epoch.
      stop: the request to stop.
      own: callbacks that act before the checkpoint: the user's, and the best epoch.
    """
    averaged = AveragedEvaluation(checkpoints)
    files: list[keras.callbacks.Callback] = []
    if checkpoints.devices.chief:
        files = [
            StopIfModelDirDeleted(path),
            HistoryFile(path / model_dirs.HISTORY, initial_step // steps),
            Dashboard(path / model_dirs.LOGS, averaged=recipe.ema_decay > 0),
        ]
    guard = StopWhenDiverged(checkpoints)
    return [
        averaged,
        guard,
        Speed(recipe.global_batch_size),
        *files,
        *own,
        SaveCheckpoints(
            checkpoints, initial_step, steps, save_every, stop, guard, averaged
        ),
    ]


def finish_epoch(
    model: keras.Model,
    run: list[keras.callbacks.Callback],
    epoch: int,
    evaluation: Any,
    evaluation_steps: int,
    sums: np.ndarray,
) -> None:
    """Evaluates an epoch whose training steps are complete, and calls the callbacks for its end.

    Args:
      model: a compiled model.
      run: the callbacks.
      epoch: the epoch, from 0.
      evaluation: data for `keras.Model.evaluate`.
      evaluation_steps: the number of batches.
      sums: the sums of the training metrics, as in `Checkpoints`.
    """
    every = CallbackList(run, model=model)
    every.on_train_begin()
    every.on_epoch_begin(epoch)
    results = model.evaluate(
        evaluation, steps=evaluation_steps, callbacks=every, verbose=0, return_dict=True
    )
    total_loss, losses, correct, images = sums  # float32, as in the metrics of Keras
    logs = {"loss": float(total_loss / losses), "accuracy": float(correct / images)}
    every.on_epoch_end(
        epoch, logs | {f"val_{name}": value for name, value in results.items()}
    )
    every.on_train_end()


class CallbackList(keras.callbacks.CallbackList):
    """Passes the tensors of a batch's logs to the callbacks that take them, and numbers to the others.

    Keras 3 would fetch the logs from the device at each step, and wait for it.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # A shorter last execution has a `batch` beyond it.
        last = self.params.get("steps", batch + 1) - 1
        self._end_batch("on_train_batch_end", min(batch, last), logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._end_batch("on_test_batch_end", batch, logs)

    def _end_batch(self, hook: str, batch: int, logs: Any) -> None:
        numbers = None
        for callback in self.callbacks:
            if getattr(type(callback), hook) is getattr(keras.callbacks.Callback, hook):
                continue
            takes_tensors = getattr(callback, "takes_tensors", False)
            if numbers is None and not takes_tensors:
                numbers = {name: float(value) for name, value in (logs or {}).items()}
            getattr(callback, hook)(batch, logs if takes_tensors else numbers)


class StopWhenDiverged(keras.callbacks.Callback):
    """Raises an `InputError` where the loss, or a weight at the end of an epoch, is not finite.

    The loss of a step is checked after the next one has started, so that no device waits for Python.
    """

    takes_tensors = True

    def __init__(self, checkpoints: Checkpoints):
        super().__init__()
        self._checkpoints = checkpoints
        self._loss: Any = 0.0

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self.check()
        self._loss = (logs or {}).get("loss", 0.0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.check()
        if not self._checkpoints.all_finite():
            self._fail("a weight is not finite")

    def check(self) -> None:
        """Checks the loss of the last step now."""
        loss = float(self._loss)
        self._loss = 0.0
        if not math.isfinite(loss):
            self._fail(f"the loss is {loss}")

    def _fail(self, problem: str) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        rate = learning_rate(self.model)
        saved = self._checkpoints.steps()
        kept = (
            f"the checkpoint of step {saved[-1]} is kept"
            if saved
            else "no checkpoint was written yet"
        )
        raise InputError(
            f"training diverged: {problem} at step {step}, where the learning rate is {rate:g}; a lower "
            f"learning_rate or more warmup_epochs, in another model_dir, may help; {kept}"
        )


class StopIfModelDirDeleted(keras.callbacks.Callback):
    """Raises an `OSError` where the model_dir was deleted, before other callbacks create it again."""

    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not (self._path / model_dirs.RECIPE).exists():
            raise OSError(
                f"model_dir {str(self._path)!r} was deleted, with the checkpoints in it"
            )


class AveragedEvaluation(keras.callbacks.Callback):
    """Evaluates the moving averages of the weights, and continues to train with the weights themselves.

    Without averages it does nothing. Keras 3.15's `SwapEMAWeights` computes the weights of training back, and
    changes half of them by rounding.
    """

    def __init__(self, checkpoints: Checkpoints):
        super().__init__()
        self._checkpoints = checkpoints
        # While averages are evaluated: variables, each with the value that it trains with.
        self._kept: list[tuple[Any, Any]] = []

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._checkpoints.averages:
            variables = self.model.trainable_variables
            self._kept = [
                (variable, keras.ops.copy(variable)) for variable in variables
            ]
            self._checkpoints.use_averages()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self.restore_weights()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._kept = []

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.restore_weights()

    def restore_weights(self) -> None:
        """Restores the weights that the model trains with."""
        for variable, weight in self._kept:
            variable.assign(weight)


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint after each epoch, every `save_every` steps within it, and before the run stops.

    Args:
      checkpoints: the checkpoints of the run; within an epoch, they also hold the sums of the metrics.
      initial_step, steps, save_every: as in `create_callbacks`.
      stop: the request to stop; a single worker also stops within an evaluation, which is repeated later.
      guard: the callback that checks the loss before anything is written within an epoch.
      averaged: the callback that replaces the weights during the evaluation.
    """

    takes_tensors = True

    def __init__(
        self,
        checkpoints: Checkpoints,
        initial_step: int,
        steps: int,
        save_every: int,
        stop: StopRequest,
        guard: StopWhenDiverged,
        averaged: AveragedEvaluation,
    ):
        super().__init__()
        self._averaged = averaged
        self._sums = checkpoints.sums  # of the epoch, also while it is evaluated
        self._checkpoints = checkpoints
        self._step = initial_step
        self._steps = steps
        self._save_every = save_every
        self._stop = stop
        self._guard = guard
        self._first_step = initial_step  # first step of this (possibly resumed) epoch
        self._stopping = False  # agreed on by all workers

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._first_step = self._step
        if self._step % self._steps:
            for variable, value in zip(
                self.model.metrics_variables, self._checkpoints.sums, strict=True
            ):
                variable.assign(value)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # The optimizer may not have it yet.
        before = self._step
        self._step = self._first_step + batch + 1
        due = self._step // self._save_every > before // self._save_every
        alone = self._checkpoints.devices.workers == 1
        if alone or self._step // AGREE_EVERY > before // AGREE_EVERY:
            self._stopping = self._checkpoints.devices.any_worker(self._stop.received)
        ended = self._step % self._steps == 0
        if due or self._stopping or ended:
            variables = self.model.metrics_variables  # of the loss, of the accuracy
            self._sums = np.array(
                [variable.numpy() for variable in variables], np.float32
            )
        if (due or self._stopping) and not ended:  # else evaluation comes first
            self._guard.check()
            self._checkpoints.sums = self._sums
            self._save()

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._stop.received and self._checkpoints.devices.workers == 1:
            self._stopping = True
            sync(self.model)
            self._averaged.restore_weights()
            self._checkpoints.sums = self._sums
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
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
