# SPDX-License-Identifier: Apache-2.0
"""The trained detector in a model_dir: its experiment, and its model with the weights that evaluate best."""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.configs import resolve
from lambdanet.detection.model_garden import optimization, task_factory
from lambdanet.errors import InputError, one_line

PARAMS = "params.yaml"
EXPERIMENT = "experiment.txt"


def load_experiment(model_dir: str | Path, experiment: str | None = None) -> Any:
    """Returns the experiment of a run, as it was trained.

    Args:
      model_dir: the folder of the run.
      experiment: its name; None: what `experiment.txt` in the folder says.

    Raises:
      InputError: there is no run, or the name of its experiment is not known.
    """
    path = os.path.expanduser(model_dir)
    params, named = os.path.join(path, PARAMS), os.path.join(path, EXPERIMENT)
    if not tf.io.gfile.exists(params):
        raise InputError(f"model_dir {path!r} has no {PARAMS}; expected one of lambdanet.detection.train")
    if experiment is None:
        if not tf.io.gfile.exists(named):
            raise InputError(f"model_dir {path!r} has no {EXPERIMENT}; name its experiment with --experiment")
        with tf.io.gfile.GFile(named) as file:
            experiment = file.read().strip()
    return resolve.resolve(experiment, [params])


def keep_name(model_dir: str | Path, experiment: str) -> None:
    """Writes the name of its experiment into the folder of a run."""
    with tf.io.gfile.GFile(os.path.join(os.path.expanduser(model_dir), EXPERIMENT), "w") as file:
        file.write(f"{experiment}\n")


def checkpoint_of(model_dir: str | Path) -> str:
    """Returns the newest checkpoint in a folder, or the one that is named.

    Args:
      model_dir: the folder, or a checkpoint such as `DIR/ckpt-1200`.

    Raises:
      InputError: there is none.
    """
    path = os.path.expanduser(model_dir)
    found = tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path
    if found is None or not tf.io.gfile.exists(f"{found}.index"):
        raise InputError(f"{path!r} holds no checkpoint; expected one written by lambdanet.detection.train")
    return found


def load_weights(model: keras.Model, params: Any, checkpoint: str) -> str:
    """Gives a model the weights of a checkpoint: their moving averages, where training kept them.

    A checkpoint of `model_dir` holds the weights of the last step, and their averages with the optimizer; one
    that was saved as the best holds the averages themselves.

    Args:
      model: built as the experiment says.
      params: the experiment.
      checkpoint: path of a checkpoint of the run.

    Returns:
      "averaged weights" or "weights", for telling.

    Raises:
      InputError: the checkpoint is damaged, or of another model.
    """
    best = params.trainer.best_checkpoint_export_subdir
    parts: dict[str, Any] = {"model": model}
    optimizer = None
    if params.trainer.optimizer_config.ema and not (best and Path(checkpoint).parent.name == Path(best).name):
        optimizer = _averaging(model, params)
        parts["optimizer"] = optimizer
    try:
        status = tf.train.Checkpoint(**parts).read(checkpoint)
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason = one_line(error)[:300]
        raise InputError(
            f"checkpoint {checkpoint!r} does not fit the model of its experiment ({reason})"
        ) from error
    if optimizer is None:
        return "averaged weights" if params.trainer.optimizer_config.ema else "weights"
    for variable in _averaged(model, params):
        variable.assign(optimizer.get_slot(variable, "average"))
    return "averaged weights"


def _averaged(model: keras.Model, params: Any) -> list[tf.Variable]:
    trainable_only = params.trainer.optimizer_config.ema.trainable_weights_only
    return model.trainable_variables if trainable_only else model.variables


def _averaging(model: keras.Model, params: Any) -> Any:
    """The optimizer of the run, with a place for the average of each weight."""
    task = task_factory.get_task(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    assert isinstance(optimizer, optimization.ExponentialMovingAverage)
    optimizer.shadow_copy(model)
    return optimizer
