# SPDX-License-Identifier: Apache-2.0
"""The model_dir of a detector's run: whether a run may go on in it, and what is written there first."""

import json
import os
from typing import Any

import tensorflow as tf

from lambdanet.detection.model_garden import ExperimentConfig, hyperparams, train_utils
from lambdanet.detection.run import checkpoints
from lambdanet.errors import InputError

# The keys of task.model that say which variables there are, and of a backbone those that do not.
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


def check(params: ExperimentConfig, mode: str, model_dir: str) -> None:
    """Refuses a folder in which a run could not go on: Model Garden would begin anew without a word.

    Args:
      params: of the experiment.
      mode: one of `configuration.MODES`.
      model_dir: the folder.

    Raises:
      InputError: there is nothing to evaluate, or another model was trained there, with what differs.
    """
    newest = tf.train.latest_checkpoint(model_dir)
    if mode == "eval" and not newest and not params.task.init_checkpoint:
        raise InputError(f"model_dir {model_dir!r} holds no checkpoint to evaluate")
    if "train" in mode and not newest:
        start = params.task.init_checkpoint or "random weights"
        print(f"{model_dir}: nothing is trained there; begins with {start}", flush=True)
    written = os.path.join(model_dir, checkpoints.PARAMS)
    if newest and tf.io.gfile.exists(written):
        before = hyperparams.read_yaml_to_params_dict(written).as_dict()["task"]["model"]
        _compare(_architecture(before), _architecture(params.task.model.as_dict()), model_dir)


def finished(params: ExperimentConfig, mode: str, model_dir: str) -> bool:
    """Whether there is nothing left to do, because training, all that is asked for, is at its end."""
    step = (tf.train.latest_checkpoint(model_dir) or "").rpartition("-")[2]
    return mode == "train" and step.isdecimal() and int(step) >= params.trainer.train_steps


def begin(params: ExperimentConfig, experiment: str, model_dir: str) -> None:
    """Writes what was asked for into the folder of a run, which is made where it is missing.

    Args:
      params: of the experiment.
      experiment: its name; empty: it is not kept.
      model_dir: the folder.

    Raises:
      InputError: it cannot be written.
    """
    try:
        train_utils.serialize_config(params, model_dir)
        if experiment:
            checkpoints.keep_name(model_dir, experiment)
    except tf.errors.OpError as error:
        raise InputError(f"model_dir {model_dir!r} cannot be written: {error.message}") from None


def _architecture(model: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a model that say which variables it has, with values as JSON has them."""
    kept = json.loads(json.dumps({key: model[key] for key in ARCHITECTURE if key in model}))
    backbone = kept.get("backbone", {})
    for options in backbone.values():
        for key in WITHOUT_VARIABLES:
            if isinstance(options, dict):
                options.pop(key, None)
    return kept


def _compare(before: dict[str, Any], now: dict[str, Any], model_dir: str) -> None:
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old != new:
            raise InputError(
                f"model_dir {model_dir!r} was trained with task.model.{key}={old}, which is {new} here; "
                "expected the same, or another folder"
            )
