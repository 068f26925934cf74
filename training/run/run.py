# SPDX-License-Identifier: Apache-2.0
"""A training run: the model, the optimizer and the checkpoints, from building to the report.

`Run.fit` calls `keras.Model.fit` once. (An epoch that had begun has a call of its own, and so
has each epoch whose last execution has fewer steps: a call has one number of steps.) The
order of an epoch:

1. `Dataset.train(step, shard)` (training/data/dataset.py) yields its batches, from the
   step at which the run stands: indices are shuffled by the seed and the number of the
   epoch, so a resumed run gets the same batches. Each picture is read, decoded,
   augmented (preprocess.py) and mixed with others (mixing.py).
2. For each batch, Keras calls the compiled step: forward pass, the loss of
   `compile_model` (losses.py), gradients, and the update of `build_optimizer`
   (optimizers.py: decay, clipping, averages; schedules.py: the learning rate).
   `accumulate_steps` divides the batch (train_step.py).
3. After each step, the callbacks in the order of `create_callbacks`: the guard checks
   that the loss is finite, and `SaveCheckpoints` writes a checkpoint every `save_every`
   steps, and where a stop was requested.
4. Keras evaluates the validation data, with the averaged weights where the recipe has
   `ema_decay`. A run that is stopped here saves the sums of its training metrics, and
   repeats the evaluation alone (`finish_epoch`).
5. At the end of the epoch, in the same order: the guard checks the weights; then come
   the images per second, history.csv, TensorBoard, the user's callbacks and the best
   epoch (best_epoch.py). The checkpoint is the last, so that everything before it is
   recorded. A run that is out of `patience` ends here.
"""

import dataclasses
import functools
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.errors import check_counts, invalid
from lambdanet.training.data.class_names import Classes
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import (
    callbacks,
    freezing,
    history,
    initial_weights,
    report,
    tensorboard,
    user_callbacks,
)
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.best_epoch import BestEpoch, LastEpoch
from lambdanet.training.run.build import (
    build_model_for_training,
    build_optimizer,
    compile_model,
)
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.devices import Devices
from lambdanet.training.run.preemption import StopRequest

which_keras.check_backend("training", ("tensorflow", "jax"))


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of a run that are not in its recipe: they change how it computes, not what it trains.

    Attributes:
      max_bad_records: the largest number of unreadable images, and of files that are no pictures, to name and
        leave out; None: 100 images, and a tenth of the files of each class.
      save_every: steps between two checkpoints within an epoch; each epoch ends with one anyway.
      steps_per_execution: steps per call of the compiled function. More are faster on a TPU, but SIGTERM,
        checkpoints and a loss that is not finite wait for the end of the call.
      deterministic: whether TensorFlow computes in a reproducible order, in this process from now on; slower.
      distribute: the devices, as in `create_devices`. Of several workers, the chief alone writes to the
        model_dir, which all of them read.
      tpu: the TPU, as in `create_devices`; None: none.
      callback: functions of the recipe and the model_dir that return a Keras callback, or their names
        "module:function". They are called before the checkpoint of each epoch, on the chief alone.

    Raises:
      InputError: options that are out of range or exclude each other.
    """

    max_bad_records: int | None = None
    save_every: int = 1000
    steps_per_execution: int = 1
    deterministic: bool = False
    distribute: str = "auto"
    tpu: str | None = None
    callback: Sequence[Any] = ()

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "callback", tuple(user_callbacks.find_factories(self.callback or ()))
        )
        check_counts(
            save_every=self.save_every, steps_per_execution=self.steps_per_execution
        )


class Run:
    """A training run in a model_dir.

    Args:
      dataset: the data, with the recipe.
      path: the model_dir.
      devices: the devices of the run.
      options: the options of the run.

    Attributes:
      step: the number of steps completed.
    """

    def __init__(
        self, dataset: Dataset, path: Path, devices: Devices, options: TrainOptions
    ):
        recipe = dataset.recipe
        self._steps = dataset.steps_per_epoch
        self._recipe = recipe
        self._dataset = dataset
        self._path = path
        self._devices = devices
        self._options = options
        self.step = 0
        if recipe.global_batch_size % (devices.replicas * recipe.accumulate_steps):
            batch = (
                f"the batch of a device, {recipe.global_batch_size // devices.replicas}"
            )
            raise invalid(
                "accumulate_steps", f"a divisor of {batch}", recipe.accumulate_steps
            )
        calls = options.steps_per_execution
        if keras.config.backend() == "tensorflow" and min(devices.replicas, calls) > 1:
            accepted = "1 on several devices of TensorFlow, where the `fit` of Keras fails with more"
            raise invalid("steps_per_execution", accepted, calls)
        keras.utils.set_random_seed(recipe.seed)
        if options.deterministic and keras.config.backend() == "tensorflow":
            tf.config.experimental.enable_op_determinism()
        self._model = build_model_for_training(recipe)
        self._optimizer = build_optimizer(recipe, self._steps)
        self._checkpoints = self._create_checkpoints(model_dirs.CHECKPOINTS)
        self._best = LastEpoch()
        if recipe.held_out_split:
            best = self._create_checkpoints(model_dirs.BEST, max_to_keep=1)
            self._best = BestEpoch(best, recipe.patience)
        self._frozen = freezing.frozen_layers(self._model, recipe)
        self._user_callbacks = user_callbacks.create(
            options.callback if devices.chief else (), recipe, path
        )
        self._evaluation = devices.distribute_dataset(
            functools.partial(dataset.eval, cache=True)
        )
        self._eval_steps = dataset.eval_steps(devices.shard())

    @property
    def is_finished(self) -> bool:
        """Whether the last epoch was trained, or `patience` epochs were not better than the best."""
        epoch = self.step // self._steps
        return epoch >= self._recipe.epochs or self._best.is_out_of_patience(epoch)

    def restore(self) -> None:
        """Restores the newest checkpoint, or else the initial weights, compiles, and claims the model_dir.

        Raises:
          InputError: the checkpoint, the initial weights or the model_dir cannot be used.
        """
        recipe = self._recipe
        self.step = self._checkpoints.restore()
        if recipe.start_from and self.step == 0:
            names = self._dataset.class_names
            classes = Classes("the data", len(names), names)
            kept = initial_weights.load_initial_weights(
                self._model, recipe.start_from, recipe.zero_head, classes
            )
            if kept and self._devices.chief:
                print(kept, flush=True)
            self._checkpoints.reset_averages()
        self._devices.prepare(self._model)
        for layer in self._frozen:
            layer.trainable = False
        compile_model(
            dataclasses.replace(recipe, class_weights=self._dataset.class_weights),
            self._model,
            self._optimizer,
            self._options.steps_per_execution,
        )
        if self._devices.chief:
            model_dirs.claim(
                self._path, recipe, self._dataset.class_names, self._dataset.data_dir
            )
        is_over = self.is_finished and self._is_evaluated()
        lines = report.opening(
            self._dataset, self._path, self._devices, self.step, is_over
        )
        print("\n".join(lines), flush=True)

    def fit(self, stop: StopRequest) -> None:
        """Trains from the current step until the run is finished.

        Raises:
          InputError: the loss is no longer finite.
          Preempted: a stop was requested, and the run is saved.
        """
        if self.step == 0 and self._devices.chief:
            images = self._dataset.first_images(tensorboard.MAX_PICTURES)
            if images:
                tensorboard.show_pictures(
                    self._path / model_dirs.LOGS, self._recipe, tf.stack(images)
                )
        if not self._is_evaluated():
            callbacks.finish_epoch(
                self._model,
                self._callbacks(stop),
                self.step // self._steps - 1,
                self._evaluation,
                self._eval_steps,
                self._checkpoints.sums,
            )
        if (
            keras.config.backend() == "jax"
            and self._devices.chief
            and not self.is_finished
        ):
            print(report.compilation(self._recipe.training_size), flush=True)
        while not self.is_finished:
            self._fit_epochs(stop)

    def report(self) -> dict[str, Any]:
        """Returns the last row of the history, the best epoch, and the epoch and step reached."""
        rows = history.read_history(self._path / model_dirs.HISTORY)
        last = (
            {name: float(value) for name, value in rows[-1].items() if value}
            if rows
            else {}
        )
        return {
            **last,
            **self._best.result(),
            "model_dir": str(self._path),
            "epoch": self.step // self._steps,
            "step": self.step,
        }

    def _create_checkpoints(self, folder: str, **options: int) -> Checkpoints:
        return Checkpoints(
            self._path / folder, self._model, self._optimizer, self._devices, **options
        )

    def _is_evaluated(self) -> bool:
        """Returns False where the run was stopped in the evaluation of its last epoch."""
        return self.step % self._steps != 0 or not self._checkpoints.sums.any()

    def _callbacks(self, stop: StopRequest) -> list[keras.callbacks.Callback]:
        return callbacks.create_callbacks(
            self._recipe,
            self._path,
            self._checkpoints,
            self.step,
            self._steps,
            self._options.save_every,
            stop,
            [*self._user_callbacks, self._best],
        )

    def _fit_epochs(self, stop: StopRequest) -> None:
        """Trains the rest of an epoch that has begun, or all epochs that are left.

        Where the last execution of an epoch has fewer steps, it ends with the data of the epoch.
        """
        epoch, done = divmod(self.step, self._steps)
        step = self.step
        verbosity = self._verbosity()
        steps = self._steps - done
        is_uneven = steps % self._options.steps_per_execution > 0
        num_batches = steps if is_uneven else -1  # all
        end = epoch + 1 if done or is_uneven else self._recipe.epochs
        run: dict[str, Any] = {"model": self._model, "epochs": end, "steps": steps}
        with warnings.catch_warnings():
            # In such an execution.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            self._model.fit(
                self._devices.distribute_dataset(
                    lambda shard: self._dataset.train(step, shard).take(num_batches)
                ),
                initial_epoch=epoch,
                epochs=end,
                steps_per_epoch=steps,
                validation_data=self._evaluation,
                validation_steps=self._eval_steps,
                callbacks=callbacks.CallbackList(
                    self._callbacks(stop), True, verbosity > 0, verbose=verbosity, **run
                ),
                shuffle=False,  # as `dataset` does
            )
        self.step = int(self._optimizer.iterations.numpy())

    def _verbosity(self) -> int:
        """Returns 1 for a progress bar in a terminal, 2 for a line per epoch, 0 for a worker's silence."""
        if not self._devices.chief:
            return 0
        return 1 if sys.stdout.isatty() else 2
