# SPDX-License-Identifier: Apache-2.0
"""Trains a recipe in a folder; the same call again goes on where it stopped."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_counts
from lambdanet.training.data import pipeline, service
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.shards import Share
from lambdanet.training.run import callbacks, initial_weights, stateless_dropout, tensorboard
from lambdanet.training.run import devices as distribution
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.best_epoch import BestEpoch
from lambdanet.training.run.build import build_model, build_optimizer, compile_model
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.preemption import StopRequest
from lambdanet.training.run.run_lock import locked

SAVE_EVERY = 1000  # steps


def train(
    recipe: Recipe,
    model_dir: str | Path,
    data_dir: str | None = None,
    max_bad_records: int | None = None,
    save_every: int = SAVE_EVERY,
    steps_per_execution: int = 1,
    deterministic: bool = False,
    distribute: str = "auto",
    tpu: str | None = None,
    data_service: str | None = None,
) -> dict[str, Any]:
    """Trains a recipe with `keras.Model.fit`, from the newest checkpoint in its folder if there is one.

    On a CPU, the same recipe gives the same weights each time, also when the run is interrupted in between.
    (Not so with a tf.data service.)

    Args:
      recipe: what to train.
      model_dir: the folder for the recipe, the checkpoints and the logs of the run.
      data_dir: where TFDS keeps its datasets, or the pictures of dataset `folder`; None: that of the run, if
        `model_dir` has one, else the default of TFDS, `~/tensorflow_datasets`.
      max_bad_records: the largest number of unreadable images, and of files that are no pictures, to name and
        leave out; None: 100 images, and a tenth of the files of each class.
      save_every: steps between two checkpoints within an epoch; there is one after each epoch anyway.
      steps_per_execution: steps that run between two looks of Python at them; more are faster on a TPU, and
        SIGTERM, checkpoints and a loss that is not finite are then noticed only after the last.
      deterministic: TensorFlow computes everything in an order that repeats, in this process from here on;
        slower.
      distribute: on which devices, as `distribute.choose` takes it. Of several workers the chief alone writes
        to `model_dir`, which all of them read.
      tpu: which TPU, as `distribute.choose` takes it; None: none.
      data_service: the address of a tf.data service that prepares the training data, such as
        "grpc://host:5000"; None: this machine does. See `service` for what an epoch is then.

    Where the recipe has a held-out split, the run is validated on that, the best epoch is kept as well, in
    `best/`, and `patience` epochs without a better one end the run.

    Returns:
      `model_dir`, the `epoch` and `step` reached, and the rest of the last row of the history: `loss`,
      `accuracy`, `val_loss`, `val_accuracy`, `learning_rate`, `seconds`.

    Raises:
      InputError: a recipe, folder or dataset that cannot be used, another run in `model_dir`, or a loss that
        is no longer finite.
      Preempted: SIGTERM came, and what was reached is saved; or another worker is gone.
      OSError: `model_dir` can no longer be written; the last checkpoint is kept.

    Example:
      >>> train(configs.get_recipe("digits"), "/tmp/digits")["val_accuracy"]
    """
    check_counts(save_every=save_every, steps_per_execution=steps_per_execution)
    if data_service is not None:
        if deterministic:
            raise InputError("data_service gives no order that repeats; accepted: it or --deterministic")
        service.check(data_service, recipe)
    if recipe.zero_head and not recipe.start_from:
        raise InputError("start_from is empty; accepted: what to fine-tune, as --set=start_from=MODEL_DIR")
    bad_records = BadRecords(max_bad_records)
    path = model_dirs.check(model_dir)  # before anything takes time
    data_dir = model_dirs.find_data_dir(path, data_dir)
    devices = distribution.choose(distribute, recipe.global_batch_size, tpu)
    lock = locked(path) if devices.chief else contextlib.nullcontext()
    with devices.noticing_who_is_gone(), lock:
        with devices.chief_first():
            recipe = pipeline.resolve(recipe, data_dir)
            model_dirs.check(path, recipe)
            names = pipeline.class_names(recipe, data_dir)
            model_dirs.check_class_names(path, names)
            steps = pipeline.steps_per_epoch(recipe, data_dir)
            pipeline.leave_out(pipeline.for_validation(recipe), data_dir, bad_records)
        keras.utils.set_random_seed(recipe.seed)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        with devices.strategy.scope():
            model = build_model(recipe)
        load = functools.partial(
            pipeline.load, recipe, data_dir=data_dir, bad_records=bad_records, data_service=data_service
        )
        validation = pipeline.for_validation(recipe)
        evaluation = devices.feed(
            lambda share: pipeline.load(validation, "eval", data_dir, bad_records=bad_records, share=share)
        )
        validation_steps = pipeline.eval_steps(validation, data_dir, devices.share())
        counted = devices.share().even or steps_per_execution > 1
        with devices.strategy.scope():
            optimizer = build_optimizer(recipe, steps)
            checkpoints = Checkpoints(path / model_dirs.CHECKPOINTS, model, optimizer, devices)
            best = None
            if recipe.held_out_split:
                kept = Checkpoints(path / model_dirs.BEST, model, optimizer, devices, kept=1)
                best = BestEpoch(kept, recipe.patience)
            compile_model(recipe, model, optimizer, steps_per_execution)
        stateless_dropout.follow_steps(model, optimizer.iterations, recipe.seed)
        step = checkpoints.restore()
        if recipe.start_from and step == 0:
            initial_weights.start_from(model, recipe.start_from, recipe.zero_head)
        if devices.chief:
            model_dirs.claim(path, recipe, names, data_dir)
        evaluated = not checkpoints.sums.numpy().any() or step % steps != 0
        finished = step >= recipe.epochs * steps or (best is not None and best.given_up(step // steps))
        _announce(recipe, path, step, steps, devices, finished and evaluated)

        def around(step: int) -> list[keras.callbacks.Callback]:
            return callbacks.for_run(recipe, path, checkpoints, step, steps, save_every, stop, best)

        with StopRequest() as stop, bad_records.ending_runs():
            if devices.chief and step == 0:
                count = min(tensorboard.MOST_PICTURES, recipe.global_batch_size)
                few = dataclasses.replace(recipe, global_batch_size=count, pseudo_labels="", pseudo_share=0.0)
                images, _ = next(iter(pipeline.load(few, "train", data_dir, bad_records=bad_records)))
                tensorboard.show_pictures(path / model_dirs.LOGS, recipe, images)
            if not evaluated:  # the run was stopped in the evaluation of its last epoch
                sums, number = checkpoints.sums.numpy(), validation_steps if counted else None
                callbacks.finish_epoch(model, around(step), step // steps - 1, evaluation, number, sums)
                finished = finished or (best is not None and best.given_up(step // steps))
            while not finished:
                epoch, done = divmod(step, steps)
                until = epoch + 1 if done else recipe.epochs  # the rest of an epoch is a `fit` of its own
                model.fit(
                    devices.feed(functools.partial(_from_step, load, step)),
                    initial_epoch=epoch,
                    epochs=until,
                    steps_per_epoch=steps - done,
                    validation_data=evaluation,
                    validation_steps=validation_steps if counted else None,  # else until it ends
                    callbacks=around(step),
                    verbose=_verbosity(devices),
                )
                step = int(optimizer.iterations.numpy())
                finished = step >= recipe.epochs * steps or model.stop_training
    return _report(recipe, path, step // steps, step, best)


def _from_step(load: Callable[..., tf.data.Dataset], step: int, share: Share) -> tf.data.Dataset:
    return load("train", initial_step=step, share=share)


def _verbosity(devices: distribution.Devices) -> int:
    """A bar with the time left in a terminal, a line for each epoch elsewhere; nothing but from the chief."""
    if not devices.chief:
        return 0
    return 1 if sys.stdout.isatty() else 2


def _announce(
    recipe: Recipe, path: Path, step: int, steps: int, devices: distribution.Devices, finished: bool
) -> None:
    if not devices.chief:
        print(f"worker {devices.worker} of {devices.workers}, from 0, at step {step}", flush=True)
        return
    run = f"{recipe.model} on {recipe.dataset} in {path}"
    epoch, done = divmod(step, steps)
    if step == 0:
        print(f"training {run}: {recipe.epochs} epochs of {steps} steps", flush=True)
    elif not finished:
        within = f" and {done} of {steps} steps" if done else ""
        print(f"resuming {run} after epoch {epoch} of {recipe.epochs}{within}, step {step}", flush=True)
    else:
        print(f"finished already: {run}, {epoch} epochs, step {step}", flush=True)
    if not finished:
        _announce_batches(recipe, devices)


def _announce_batches(recipe: Recipe, devices: distribution.Devices) -> None:
    batch, replicas = recipe.global_batch_size, devices.replicas
    each = f", {batch // replicas} on each of {replicas} devices" if replicas > 1 else ""
    machines = f" of {devices.workers} machines" if devices.workers > 1 else ""
    pseudo = f", {recipe.num_pseudo_labels} of them with pseudo-labels" if recipe.num_pseudo_labels else ""
    precision = "bfloat16" if recipe.mixed_precision else "float32"
    rate = f"the learning rate rises to {recipe.learning_rate:g}"
    print(f"batches of {batch} images{each}{machines}{pseudo}, in {precision}; {rate}", flush=True)


def _report(recipe: Recipe, path: Path, epoch: int, step: int, best: BestEpoch | None) -> dict[str, Any]:
    rows = callbacks.read_history(path / model_dirs.HISTORY)
    last = {name: float(value) for name, value in rows[-1].items() if value} if rows else {}
    if best is not None:
        last |= {"best_epoch": best.epoch, "best_val_accuracy": best.accuracy}
    return {**last, "model_dir": str(path), "epoch": epoch, "step": step}
