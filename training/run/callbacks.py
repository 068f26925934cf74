# SPDX-License-Identifier: Apache-2.0
"""What happens around the steps of a training run: guarding it, recording it, saving it."""

import csv
import io
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, Preempted
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.best_epoch import BestEpoch
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.preemption import StopRequest
from lambdanet.training.run.tensorboard import Dashboard, Speed

ASK_EVERY = 10  # steps between two questions of several workers whether one of them has to stop


def for_run(
    recipe: Recipe,
    path: Path,
    checkpoints: Checkpoints,
    initial_step: int,
    steps: int,
    save_every: int,
    stop: StopRequest,
    best: BestEpoch | None = None,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a run, in the order in which they have to act.

    The guard comes first, so that nothing diverged is recorded; the checkpoint comes last, so that whatever
    a resumed run begins after has been recorded.

    Args:
      recipe: of the run.
      path: the model_dir.
      checkpoints: of the run. Where it has several workers, the chief alone writes files.
      initial_step: steps completed already.
      steps: of an epoch.
      save_every: how many steps lie between two checkpoints within an epoch.
      stop: asks the run to stop.
      best: keeps the best epoch; None: the last one counts.
    """
    averaged = AveragedEvaluation(checkpoints) if recipe.ema_decay else None
    files: list[keras.callbacks.Callback] = []
    if checkpoints.devices.chief:
        files = [
            StopWhenGone(path),
            HistoryFile(path / model_dirs.HISTORY, initial_step // steps),
            Dashboard(path / model_dirs.LOGS, averaged=recipe.ema_decay > 0),
        ]
    guard = StopWhenDiverged(checkpoints)
    return [
        *([averaged] if averaged else []),
        guard,
        Speed(recipe.global_batch_size),
        *files,
        *([KeepBest(best)] if best else []),
        SaveCheckpoints(checkpoints, initial_step, steps, save_every, stop, guard, averaged),
    ]


def finish_epoch(
    model: keras.Model,
    run: list[keras.callbacks.Callback],
    epoch: int,
    evaluation: Any,
    evaluation_steps: int | None,
    sums: np.ndarray,
) -> None:
    """Does what is left of an epoch whose steps are made: its evaluation, and what comes at its end.

    Args:
      model: compiled.
      run: the callbacks.
      epoch: from 0.
      evaluation: data, as `keras.Model.fit` takes it.
      evaluation_steps: batches of it; None: until it ends.
      sums: of the metrics of training, as `Checkpoints` keeps them.
    """
    together = keras.callbacks.CallbackList(run, model=model)
    together.on_train_begin()
    together.on_epoch_begin(epoch)
    found = model.evaluate(
        evaluation, steps=evaluation_steps, callbacks=together, verbose=0, return_dict=True
    )
    total_loss, losses, right, images = sums.tolist()
    logs = {"loss": total_loss / losses, "accuracy": right / images}
    together.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in found.items()})
    together.on_train_end()


class StopWhenDiverged(keras.callbacks.Callback):
    """Ends the run with an `InputError` once the loss, or a weight at the end of an epoch, is not finite.

    The loss of a step is looked at after the next one has begun, so that no device waits for Python.
    """

    _supports_tf_logs = True  # as Keras has it: logs need not be fetched for it at each step

    def __init__(self, checkpoints: Checkpoints):
        super().__init__()
        self._checkpoints = checkpoints
        self._loss: tf.Tensor | float = 0.0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.check()
        self._loss = (logs or {}).get("loss", 0.0)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.check()
        if not self._checkpoints.all_finite():
            self._stop("a weight is not finite")

    def check(self) -> None:
        """Looks at the loss of the last step now."""
        loss, self._loss = float(self._loss), 0.0
        if not math.isfinite(loss):
            self._stop(f"the loss is {loss}")

    def _stop(self, what: str) -> None:
        step, rate = int(self.model.optimizer.iterations.numpy()), learning_rate(self.model)
        saved = self._checkpoints.steps()
        kept = f"the checkpoint of step {saved[-1]} is kept" if saved else "no checkpoint was written yet"
        raise InputError(
            f"training diverged: {what} at step {step}, where the learning rate is {rate:g}; a lower "
            f"learning_rate or more warmup_epochs, in another model_dir, may help; {kept}"
        )


class StopWhenGone(keras.callbacks.Callback):
    """Ends the run with an `OSError` once its folder is gone, which other callbacks would make anew.

    Args:
      path: the model_dir.
    """

    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if not (self._path / model_dirs.RECIPE).exists():
            raise OSError(f"model_dir {str(self._path)!r} is gone, with the checkpoints in it")


class AveragedEvaluation(keras.callbacks.Callback):
    """Evaluates with the moving averages of the weights, and trains on with the weights themselves.

    Keras, too, puts the averages in the place of the weights, at the end of every `fit`; the next one of a
    run that goes on must not begin with them.
    """

    def __init__(self, checkpoints: Checkpoints):
        super().__init__()
        self._checkpoints = checkpoints
        self._weights: list[tf.Tensor] = []

    def on_test_begin(self, logs: dict | None = None) -> None:
        self._weights = [tf.identity(variable) for variable in self.model.trainable_variables]
        self._checkpoints.use_averages()

    def on_test_end(self, logs: dict | None = None) -> None:
        self.put_back()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._weights = []

    def on_train_end(self, logs: dict | None = None) -> None:
        if self._weights:
            self.put_back()

    def put_back(self) -> None:
        """Gives the model the weights that it trains with."""
        for variable, weight in zip(self.model.trainable_variables, self._weights, strict=True):
            variable.assign(weight)


class KeepBest(keras.callbacks.Callback):
    """Keeps the epoch with the best accuracy on the held-out split, and ends a run without a better one."""

    def __init__(self, best: BestEpoch):
        super().__init__()
        self._best = best

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        self._best.consider(epoch + 1, step, (logs or {})["val_accuracy"])
        if self._best.given_up(epoch + 1):
            self.model.stop_training = True


class HistoryFile(keras.callbacks.Callback):
    """Keeps a CSV file with a row for each epoch, counted from 1; a resumed run goes on below its own rows.

    Args:
      path: the file; written whole after each epoch.
      initial_epoch: epochs completed already; later rows, of a run that was killed, are dropped.
    """

    def __init__(self, path: Path, initial_epoch: int):
        super().__init__()
        self._path = path
        self._rows = [row for row in read_history(path) if int(row["epoch"]) <= initial_epoch]
        self._start = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        row = {
            "epoch": epoch + 1,
            "step": int(self.model.optimizer.iterations.numpy()),
            "learning_rate": f"{learning_rate(self.model):.6g}",
            "seconds": f"{time.monotonic() - self._start:.2f}",
            **{name: f"{value:.6f}" for name, value in (logs or {}).items()},
        }
        self._rows.append({name: str(value) for name, value in row.items()})
        text = io.StringIO()
        columns = dict.fromkeys(name for row in self._rows for name in row)
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        model_dirs.write_text(self._path, text.getvalue())


class SaveCheckpoints(keras.callbacks.Callback):
    """Writes a checkpoint after each epoch, every so many steps within it, and before the run has to stop.

    Args:
      checkpoints: of the run; within an epoch, its metrics go on from their sums there.
      initial_step: steps completed already.
      steps: of an epoch.
      save_every: how many steps lie between two checkpoints within an epoch.
      stop: asks the run to stop; one of a single worker does so within its evaluation too, which then
        comes again.
      guard: is asked before anything is written within an epoch.
      averaged: what changes the weights for the evaluation, if anything does.
    """

    _supports_tf_logs = True  # as Keras has it: logs need not be fetched for it at each step

    def __init__(
        self,
        checkpoints: Checkpoints,
        initial_step: int,
        steps: int,
        save_every: int,
        stop: StopRequest,
        guard: StopWhenDiverged,
        averaged: AveragedEvaluation | None = None,
    ):
        super().__init__()
        self._averaged = averaged
        self._sums = checkpoints.sums.numpy()  # of the epoch, also while it is evaluated
        self._checkpoints = checkpoints
        self._step = initial_step
        self._steps = steps
        self._save_every = save_every
        self._stop = stop
        self._guard = guard
        self._begun = initial_step  # steps completed when the epoch, or the rest of it, began
        self._stopping = False  # as all workers have agreed

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._begun = self._step
        if self._step % self._steps:
            _build_metrics(self.model)
            for metric, sums in zip(
                self.model.metrics, np.split(self._checkpoints.sums.numpy(), 2), strict=True
            ):
                metric.set_weights(list(sums))

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        before, self._step = self._step, self._begun + batch + 1  # the optimizer would have to be waited for
        due = self._step // self._save_every > before // self._save_every
        if self._asks_others(before):
            self._stopping = self._checkpoints.devices.anyone(self._stop.received)
        ended = self._step % self._steps == 0
        if due or self._stopping or ended:
            self._sums = np.concatenate([metric.get_weights() for metric in self.model.metrics])
        if (due or self._stopping) and not ended:  # else evaluation comes first
            self._guard.check()
            self._checkpoints.sums.assign(self._sums)
            self._save()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._stop.received and self._checkpoints.devices.workers == 1:
            self._stopping = True
            if self._averaged:
                self._averaged.put_back()
            self._checkpoints.sums.assign(self._sums)
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._stopping = self._checkpoints.devices.anyone(self._stop.received)
        self._checkpoints.sums.assign(np.zeros_like(self._sums))
        self._save()

    def _asks_others(self, before: int) -> bool:
        """Whether to learn if any worker has to stop: at each step where there is but one."""
        return self._checkpoints.devices.workers == 1 or self._step // ASK_EVERY > before // ASK_EVERY

    def _save(self) -> None:
        self._checkpoints.save(self._step)
        if self._stopping:
            raise Preempted(
                f"stopped by SIGTERM at step {self._step}, which is saved; the same command goes on there"
            )


def _build_metrics(model: keras.Model) -> None:
    """Makes the variables of a compiled model's loss and metrics, as its first step would."""
    logits, labels = tf.zeros([1, *model.output_shape[1:]]), tf.zeros([1])
    model.compiled_loss.build(logits)
    model.compiled_metrics.build(logits, labels)


def learning_rate(model: keras.Model) -> float:
    """Returns the learning rate of the step that a compiled model has just made."""
    return float(keras.backend.get_value(model.optimizer.learning_rate))


def read_history(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a history file, none where there is no file.

    Raises:
      InputError: a file that is not one.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        for row in rows:
            int(row["epoch"]), [float(value or 0) for value in row.values()]
    except (csv.Error, KeyError, TypeError, ValueError):
        raise InputError(
            f"{str(path)!r} is not the history of a run, a CSV of numbers in UTF-8 with a column epoch; "
            "remove it to go on without it"
        ) from None
    return rows
