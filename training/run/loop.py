# SPDX-License-Identifier: Apache-2.0
"""The run of a recipe, from its folder to its report, in the order in which things happen: `train`.

Most runs are one call of `keras.Model.fit`. The order of an epoch in it:

1. `Dataset.train(position, shard)` (training/data/dataset.py) yields its batches, from the place in the
   epochs at which the run stands (`DataRecord.place`, start.py): indices are shuffled by the seed and the
   number of the epoch, so a resumed run gets the same batches. Each picture is read, decoded, augmented and
   mixed with others (preprocess.py).
2. For each batch, Keras calls the compiled step (step.py): forward pass, the loss of `compile_model`
   (build.py), gradients (`accumulate_steps` divides the batch), the sum over devices, and the update of
   `build_optimizer`: loss scaling, clipping, decay, and the learning rate of `WarmupSchedule` (build.py).
   Then the averages move.
3. After each step, the callbacks in the order of `create_callbacks`: the guard checks that the loss is
   finite, and `SaveCheckpoints` (checkpoints.py) writes a checkpoint every `save_every` steps, and where a
   stop was requested.
4. Keras evaluates the validation data, with the averaged weights where the recipe has `ema_decay`. A run that
   is stopped here saves the sums of its training metrics, and repeats the evaluation alone (`finish_epoch`).
5. At the end of the epoch, the same callbacks: the guard checks the weights; then come the images per second,
   history.csv, curves.png and TensorBoard (logs.py), the user's callbacks and the best epoch. The checkpoint
   is the last, so that everything before it is recorded. A run that is out of `patience` ends here.
"""

import contextlib
import dataclasses
import functools
import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lambdanet.backend import ENGINE, keras
from lambdanet.configs.recipe import Recipe
from lambdanet.core import which_keras
from lambdanet.core.command_line import find_function
from lambdanet.core.errors import InputError, check_counts, invalid
from lambdanet.core.files import locked
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.class_names import Classes, read_class_map
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run import start
from lambdanet.training.run.build import (
    build_model_for_training,
    build_optimizer,
    compile_model,
)
from lambdanet.training.run.checkpoints import (
    SUMS,
    AveragedEvaluation,
    BestEpoch,
    Checkpoints,
    Logs,
    SaveCheckpoints,
    is_out_of_patience,
    read_newest,
)
from lambdanet.training.run.devices import Devices, create_devices
from lambdanet.training.run.logs import (
    MAX_PICTURES,
    FirstStep,
    HistoryFile,
    SkippedSteps,
    Speed,
    draw_curves,
    learning_rate,
    opening,
    show_pictures,
)
from lambdanet.training.run.lora import enable_lora
from lambdanet.training.run.memory import memory_lines
from lambdanet.training.run.optimizers import class_of
from lambdanet.training.run.stop_request import StopRequest

which_keras.check_backend("training", ("tensorflow", "jax"))

# The recipe, the model_dir -> a callback of Keras 3.
CallbackFactory = Callable[[Recipe, Path], keras.callbacks.Callback]


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
      accept_new_data: whether a run goes on where the pictures are others than those that it began with
        (`lambdanet.training.run.start`).
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
    accept_new_data: bool = False
    callback: Sequence[Any] = ()

    def __post_init__(self) -> None:
        factories = [
            find_function(name, "callback") if isinstance(name, str) else name
            for name in self.callback
        ]
        object.__setattr__(self, "callback", tuple(factories))
        check_counts(
            save_every=self.save_every, steps_per_execution=self.steps_per_execution
        )


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
      data_dir: the folder of TFDS, or of the pictures or records, or `hf:USER/REPO`, their repository on the
        hub; None: the run's, if `model_dir` has one, else the default of TFDS, `~/tensorflow_datasets`.
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
    # The options and the folder, before anything that takes time.
    chosen = TrainOptions(**options)
    if recipe.zero_head and not recipe.start_from:
        accepted = "weights to fine-tune, with zero_head"
        raise invalid("start_from", accepted, "", "--set=start_from=MODEL_DIR")
    class_of(recipe)  # checks the options of the optimizer
    path = model_dirs.check_model_dir(model_dir, recipe)
    if finished := start.find_finished(path, recipe):
        return finished
    data_dir = model_dirs.find_data_dir(path, data_dir)

    # The devices. The first of several processes, the chief, alone writes files.
    devices = create_devices(chosen.distribute, recipe.global_batch_size, chosen.tpu)
    check_steps(recipe, devices, chosen)
    lock = locked(path) if devices.chief else contextlib.nullcontext()
    with devices.raise_if_worker_lost(), lock, devices.scope():
        # The data, whose classes have the order of the run's.
        bad_records = BadRecords(chosen.max_bad_records)
        with devices.chief_first():
            classes = model_dirs.classes_of(path)
            if class_map is not None:
                names = read_class_map(class_map)
                classes = Classes(f"class_map {str(class_map)!r}", len(names), names)
            before = start.read_record(path)
            dataset = Dataset.open(
                recipe,
                data_dir,
                bad_records,
                recipe.held_out_split or None,
                classes,
                made_from_training=before.held_out,
                white_class=before.white_class,
            )
            dataset.check(compare=not before.splits)
            record = start.describe(dataset, before)
        recipe = dataset.recipe
        steps_per_epoch = dataset.steps_per_epoch
        evaluation = devices.distribute_dataset(
            functools.partial(dataset.eval, cache=True)
        )
        evaluation_steps = dataset.eval_steps(devices.shard())

        # The newest checkpoint, and its place in the epochs.
        step, arrays = read_newest(path / model_dirs.CHECKPOINTS)
        if step:
            record = start.resume(
                path,
                before,
                record,
                step,
                bool(arrays[SUMS].any()),
                chosen.accept_new_data,
            )
        place = record.place(step)

        # The model, with its initial weights unless it has been trained, and its optimizer.
        keras.utils.set_random_seed(recipe.seed)
        if chosen.deterministic and ENGINE == "tensorflow":
            tf.config.experimental.enable_op_determinism()
        model = build_model_for_training(recipe)
        frozen = start.frozen_layers(model, recipe)
        if recipe.start_from and not step:
            names = dataset.class_names
            classes = Classes("the data", len(names), names)
            line = start.load_initial_weights(
                model, recipe.start_from, recipe.zero_head, classes
            )
            if line and devices.chief:
                print(line, flush=True)
        for layer in frozen:
            layer.trainable = False
        if recipe.lora_rank:
            enable_lora(model, recipe.lora_rank)
        optimizer = build_optimizer(
            recipe, model.weights, steps_per_epoch, record.place(0).position
        )

        # Their checkpoints, and the values of the newest.
        checkpoints = Checkpoints(
            path / model_dirs.CHECKPOINTS, model, optimizer, devices
        )
        best = []
        if recipe.held_out_split:
            kept = Checkpoints(
                path / model_dirs.BEST, model, optimizer, devices, max_to_keep=1
            )
            best = [BestEpoch(kept, recipe.patience, dataset.task)]
        own = [
            *_user_callbacks(chosen.callback if devices.chief else (), recipe, path),
            *best,
        ]
        if step and step == record.first_step:  # its epoch begins again
            arrays[SUMS].fill(0)
        checkpoints.restore((step, arrays))
        del arrays  # which are as large as the variables
        devices.prepare(model)
        compile_model(
            dataclasses.replace(
                recipe,
                class_weights=dataset.class_weights,
                positive_weights=dataset.positive_weights,
            ),
            model,
            optimizer,
            chosen.steps_per_execution,
        )
        if devices.chief:
            model_dirs.claim(
                path,
                recipe,
                dataset.class_names,
                dataset.data_dir,
                json.dumps(record._asdict()),
            )

        # What the run says about itself.
        def is_finished(place: start.Place) -> bool:
            return place.epoch >= recipe.epochs or any(
                is_out_of_patience(recipe.patience, place.epoch - each.epoch)
                for each in best
            )

        # False where the run was stopped in the evaluation of its last epoch.
        is_evaluated = place.step > 0 or not checkpoints.sums.any()
        with (
            StopRequest() as stop,
            bad_records.as_input_errors(),
            contextlib.ExitStack() as ends,
        ):
            if devices.chief:
                ends.callback(draw_curves, path / model_dirs.HISTORY, recipe)
            lines = opening(dataset, path, devices, step, place.epoch, place.step)
            lines += memory_lines(recipe, model, devices.workers)
            print("\n".join(lines), flush=True)
            if devices.chief and step == 0:
                pairs = dataset.first_pairs(MAX_PICTURES)
                show_pictures(path / model_dirs.LOGS, [image for image, _ in pairs])

            # Its epochs.
            saving = SaveCheckpoints(checkpoints, chosen.save_every, stop)
            callbacks = create_callbacks(recipe, path, checkpoints, own, saving)
            if not is_evaluated:
                finish_epoch(
                    model, callbacks, place.epoch - 1, evaluation, evaluation_steps
                )
            if devices.chief and not is_finished(place):
                first_step = FirstStep()
                ends.callback(first_step.stop)
                callbacks.append(first_step)
            verbosity = 1 if sys.stdout.isatty() else 2  # a bar, or a line per epoch
            if not devices.chief:
                verbosity = 0
            while not is_finished(place):
                # A call of `fit` has one number of steps per epoch. So the rest of an epoch that had begun
                # has a call of its own, and so has each epoch whose last execution has fewer steps.
                steps = place.steps_left
                uneven = steps % chosen.steps_per_execution
                count = steps if uneven else -1
                batches = functools.partial(dataset.train, place.position, count=count)
                end = place.epoch + 1 if place.step or uneven else recipe.epochs
                run = {"model": model, "epochs": end, "steps": steps}
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Your input ran out of data")
                    model.fit(
                        devices.distribute_dataset(batches),
                        initial_epoch=place.epoch,
                        epochs=end,
                        steps_per_epoch=steps,
                        validation_data=evaluation,
                        validation_steps=evaluation_steps,
                        callbacks=CallbackList(
                            callbacks, True, verbosity > 0, verbose=verbosity, **run
                        ),
                        shuffle=False,  # as `dataset` does
                    )
                place = record.place(int(optimizer.iterations.numpy()))

    # Its report.
    return start.report(path, recipe)


def create_callbacks(
    recipe: Recipe,
    path: Path,
    checkpoints: Checkpoints,
    own: Sequence[keras.callbacks.Callback],
    saving: SaveCheckpoints,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a run in the order in which they have to act.

    The guard is before all that records, so that nothing diverged is recorded.

    Args:
      recipe: the recipe.
      path: the model_dir.
      checkpoints: the checkpoints of the run. The chief alone of several workers writes files.
      own: the user's callbacks, and the best epoch.
      saving: the callback that writes the checkpoints.
    """
    averages = [AveragedEvaluation(checkpoints)] if recipe.ema_decay else []
    skipped = [SkippedSteps()] if recipe.mixed_precision == "float16" else []
    files: list[keras.callbacks.Callback] = []
    if checkpoints.devices.chief:
        files = [
            HistoryFile(path / model_dirs.HISTORY, recipe),
            keras.callbacks.TensorBoard(
                str(path / model_dirs.LOGS), write_graph=False, profile_batch=0
            ),
        ]
    return [
        *averages,
        StopWhenDiverged(checkpoints),
        Speed(recipe.global_batch_size),
        *skipped,
        *files,
        *own,
        saving,
    ]


def finish_epoch(
    model: keras.Model,
    callbacks: list[keras.callbacks.Callback],
    epoch: int,
    evaluation: Any,
    evaluation_steps: int,
) -> None:
    """Evaluates an epoch whose training steps are complete, and calls the callbacks for its end.

    Args:
      model: a compiled model.
      callbacks: the callbacks of the run.
      epoch: the epoch, from 0.
      evaluation: data for `keras.Model.evaluate`.
      evaluation_steps: the number of batches.
    """
    every = CallbackList(callbacks, model=model)
    every.on_train_begin()
    every.on_epoch_begin(epoch)
    training = {k: float(v) for k, v in model.get_metrics_result().items()}
    results = model.evaluate(
        evaluation, steps=evaluation_steps, callbacks=every, verbose=0, return_dict=True
    )
    validation = {f"val_{name}": value for name, value in results.items()}
    every.on_epoch_end(epoch, training | validation)
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

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._check_loss()
        self._loss = (logs or {}).get("loss", 0.0)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._check_loss()
        if not self._checkpoints.all_finite():
            self._fail("a weight is not finite")

    def _check_loss(self) -> None:
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


def check_steps(recipe: Recipe, devices: Devices, options: TrainOptions) -> None:
    """Raises `InputError` for a batch or a call that cannot be divided into steps on the devices."""
    if recipe.global_batch_size % (devices.replicas * recipe.accumulate_steps):
        batch = recipe.global_batch_size // devices.replicas
        accepted = f"a divisor of the batch of a device, {batch}"
        raise invalid("accumulate_steps", accepted, recipe.accumulate_steps)
    steps = options.steps_per_execution
    if ENGINE == "tensorflow" and min(devices.replicas, steps) > 1:
        accepted = "1 on several devices of TensorFlow, where the `fit` of Keras fails with more"
        raise invalid("steps_per_execution", accepted, steps)


def _user_callbacks(
    factories: Sequence[CallbackFactory], recipe: Recipe, path: Path
) -> list[keras.callbacks.Callback]:
    """Returns the user's callbacks; `InputError` where a function returns something else."""
    created = []
    for factory in factories:
        callback = factory(recipe, path)
        if not isinstance(callback, keras.callbacks.Callback):
            name = getattr(factory, "__name__", "callback")
            raise invalid(f"result of {name}", "a keras.callbacks.Callback", callback)
        created.append(callback)
    return created
