# SPDX-License-Identifier: Apache-2.0
"""Loads the experiment and the weights of a trained detector from its model_dir."""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.configs import resolve
from lambdanet.detection.model_garden import optimization, task_factory
from lambdanet.errors import InputError, invalid, one_line

PARAMS = "params.yaml"
EXPERIMENT = "experiment.txt"


def load_experiment(model_dir: str | Path, experiment: str | None = None) -> Any:
    """Returns the experiment of a run, as it was trained.

    Args:
      model_dir: the folder of the run.
      experiment: the name of the experiment; default: from `experiment.txt` in the folder.

    Raises:
      InputError: there is no run, or the name of its experiment is unknown.
    """
    path = os.path.expanduser(model_dir)
    params, name_file = os.path.join(path, PARAMS), os.path.join(path, EXPERIMENT)
    if not tf.io.gfile.exists(params):
        raise invalid("model_dir", f"a folder of lambdanet.detection.train, with {PARAMS}", path)
    if experiment is None:
        if not tf.io.gfile.exists(name_file):
            raise InputError(f"model_dir {path!r} has no {EXPERIMENT}; name its experiment with --experiment")
        with tf.io.gfile.GFile(name_file) as file:
            experiment = file.read().strip()
    return resolve.resolve(experiment, [params])


def write_experiment_name(model_dir: str | Path, experiment: str) -> None:
    """Writes the name of the experiment into the folder of a run."""
    with tf.io.gfile.GFile(os.path.join(os.path.expanduser(model_dir), EXPERIMENT), "w") as file:
        file.write(f"{experiment}\n")


def find_checkpoint(model_dir: str | Path) -> str:
    """Returns the newest checkpoint in a folder, or the given checkpoint.

    Args:
      model_dir: the folder, or a checkpoint such as `DIR/ckpt-1200`.

    Raises:
      InputError: there is no checkpoint.
    """
    path = os.path.expanduser(model_dir)
    found = tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path
    if found is None or not tf.io.gfile.exists(f"{found}.index"):
        raise invalid("checkpoint", "one of lambdanet.detection.train, or a folder with one", path)
    return found


def load_weights(model: keras.Model, params: Any, checkpoint: str) -> str:
    """Loads the weights of a checkpoint into a model: their moving averages, if training kept them.

    A checkpoint in `model_dir` holds the weights of the last step as the model's, and their averages as slots
    of the optimizer; the best checkpoint holds the averages as the model's weights.

    Args:
      model: the model of the experiment.
      params: the experiment.
      checkpoint: the path of a checkpoint of the run.

    Returns:
      "averaged weights" or "weights", to print.

    Raises:
      InputError: the checkpoint is damaged, or of another model.
    """
    best = params.trainer.best_checkpoint_export_subdir
    parts: dict[str, Any] = {"model": model}
    optimizer = None
    if params.trainer.optimizer_config.ema and not (best and Path(checkpoint).parent.name == Path(best).name):
        optimizer = averaging_optimizer(model, params)
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
    for variable in averaged_variables(model, params):
        variable.assign(optimizer.get_slot(variable, "average"))
    return "averaged weights"


def averaged_variables(model: keras.Model, params: Any) -> list[tf.Variable]:
    """Returns the variables of a model whose moving averages the optimizer keeps."""
    trainable_only = params.trainer.optimizer_config.ema.trainable_weights_only
    return model.trainable_variables if trainable_only else model.variables


def averaging_optimizer(model: keras.Model, params: Any) -> Any:
    """Returns the optimizer of an experiment with a slot for the average of each variable."""
    task = task_factory.get_task(params.task)
    optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    assert isinstance(optimizer, optimization.ExponentialMovingAverage)
    optimizer.shadow_copy(model)
    return optimizer
