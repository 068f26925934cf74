# SPDX-License-Identifier: Apache-2.0
"""The model_dir of a detector: checks before a run resumes in it, its experiment and its weights."""

import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import absolute
from lambdanet.detection.configs import resolve
from lambdanet.detection.model_garden import (
    ExperimentConfig,
    hyperparams,
    optimization,
    task_factory,
    train_utils,
)
from lambdanet.detection.modeling import backbones, initialize

PARAMS = "params.yaml"
EXPERIMENT = "experiment.txt"
# The keys of task.model that determine its variables, and the keys of a backbone that do not.
ARCHITECTURE = (
    "num_classes",
    "backbone",
    "decoder",
    "min_level",
    "max_level",
    "anchor",
    "include_mask",
    "rpn_head",
    "detection_head",
    "mask_head",
    "head",
)
WITHOUT_VARIABLES = ("stochastic_depth_drop_rate", "bn_trainable", "implementation")


def load_experiment(model_dir: str | Path, experiment: str | None = None) -> Any:
    """Returns the experiment of a run, as it was trained.

    Args:
      model_dir: the folder of the run.
      experiment: the name of the experiment; default: from `experiment.txt` in the folder.

    Raises:
      InputError: there is no run, or the name of its experiment is unknown.
    """
    path = os.path.expanduser(model_dir)
    params = os.path.join(path, PARAMS)
    name_file = os.path.join(path, EXPERIMENT)
    if not tf.io.gfile.exists(params):
        raise invalid(
            "model_dir", f"a folder of lambdanet.detection.train, with {PARAMS}", path
        )
    if experiment is None:
        if not tf.io.gfile.exists(name_file):
            raise InputError(
                f"model_dir {path!r} has no {EXPERIMENT}; name its experiment with --experiment"
            )
        with tf.io.gfile.GFile(name_file) as file:
            experiment = file.read().strip()
    return resolve.resolve(experiment, [params])


def write_experiment_name(model_dir: str | Path, experiment: str) -> None:
    """Writes the name of the experiment into the folder of a run."""
    with tf.io.gfile.GFile(
        os.path.join(os.path.expanduser(model_dir), EXPERIMENT), "w"
    ) as file:
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
        raise invalid(
            "checkpoint", "one of lambdanet.detection.train, or a folder with one", path
        )
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
    _check_not_of_tf_keras(checkpoint, params, f"checkpoint {checkpoint!r}")
    parts: dict[str, Any] = {"model": model}
    optimizer = None
    if params.trainer.optimizer_config.ema and not (
        best and Path(checkpoint).parent.name == Path(best).name
    ):
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


def check_model_dir(params: ExperimentConfig, mode: str, model_dir: str) -> None:
    """Rejects a folder in which a run cannot resume; Model Garden would silently start again.

    Args:
      params: the experiment.
      mode: one of `resolve.MODES`.
      model_dir: the folder.

    Raises:
      InputError: there is nothing to evaluate, or another model was trained there; the message has the
        first difference.
    """
    newest = tf.train.latest_checkpoint(model_dir)
    if mode == "eval" and not newest and not params.task.init_checkpoint:
        raise InputError(f"model_dir {model_dir!r} holds no checkpoint to evaluate")
    if "train" in mode and not newest:
        start = params.task.init_checkpoint or "random weights"
        print(f"{model_dir}: no checkpoint, starting from {start}", flush=True)
    if newest:
        _check_not_of_tf_keras(newest, params, f"model_dir {model_dir!r}")
    written = os.path.join(model_dir, PARAMS)
    if newest and tf.io.gfile.exists(written):
        before = hyperparams.read_yaml_to_params_dict(written).as_dict()["task"][
            "model"
        ]
        _compare(
            _architecture(before), _architecture(params.task.model.as_dict()), model_dir
        )


def _check_not_of_tf_keras(checkpoint: str, params: Any, name: str) -> None:
    """Checks a checkpoint of the experiment; one that cannot be read is left to its reader."""
    if params.task.model.backbone.type not in backbones.FAMILIES:
        return
    try:
        keys = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError):
        return
    initialize.check_not_of_tf_keras(keys, name)


def is_finished(params: ExperimentConfig, mode: str, model_dir: str) -> bool:
    """Returns whether a training has done all of its steps.

    Args:
      params: the experiment, which has the number of steps.
      mode: the mode of Model Garden, such as "train" or "train_and_eval"; False for all but "train".
      model_dir: the folder with the checkpoints, the last of which has the step in its name.
    """
    step = (tf.train.latest_checkpoint(model_dir) or "").rpartition("-")[2]
    return (
        mode == "train" and step.isdecimal() and int(step) >= params.trainer.train_steps
    )


def write_params(params: ExperimentConfig, experiment: str, model_dir: str) -> None:
    """Writes the configuration and the name of an experiment into `model_dir`, creating it.

    Paths of data become absolute in the file, so that it can be used in any folder.

    Args:
      params: the experiment.
      experiment: its name; empty: not written.
      model_dir: the folder.

    Raises:
      InputError: the folder cannot be written.
    """
    written = params.replace()
    for _, config in resolve.walk(written):
        for key in ("input_path", "annotation_file"):
            files = getattr(config, key, None)
            if files and isinstance(files, str):
                setattr(config, key, ",".join(map(absolute, files.split(","))))
    try:
        train_utils.serialize_config(written, model_dir)
        if experiment:
            write_experiment_name(model_dir, experiment)
    except tf.errors.OpError as error:
        raise InputError(
            f"model_dir {model_dir!r} cannot be written: {error.message}"
        ) from None


def _architecture(model: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a model's configuration that determine its variables, as JSON types."""
    kept = json.loads(
        json.dumps({key: model[key] for key in ARCHITECTURE if key in model})
    )
    backbone = kept.get("backbone", {})
    for options in backbone.values():
        for key in WITHOUT_VARIABLES:
            if isinstance(options, dict):
                options.pop(key, None)
    return kept


def _compare(before: Any, now: Any, model_dir: str, key: str = "task.model") -> None:
    """Raises `InputError` for the first value that differs from the run in `model_dir`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            _compare(before.get(name), now.get(name), model_dir, f"{key}.{name}")
    elif before != now:
        raise invalid(
            key,
            f"{before!r} as in model_dir {model_dir!r}",
            now,
            "or use another folder",
        )
