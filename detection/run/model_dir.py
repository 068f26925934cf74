# SPDX-License-Identifier: Apache-2.0
"""The model_dir of a detector: checks before a run resumes in it, and the files that describe the run."""

import json
import os
from typing import Any

import tensorflow as tf

from lambdanet.detection.model_garden import ExperimentConfig, hyperparams, train_utils
from lambdanet.detection.run import checkpoints
from lambdanet.errors import InputError, invalid

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
    written = os.path.join(model_dir, checkpoints.PARAMS)
    if newest and tf.io.gfile.exists(written):
        before = hyperparams.read_yaml_to_params_dict(written).as_dict()["task"]["model"]
        _compare(_architecture(before), _architecture(params.task.model.as_dict()), model_dir)


def is_finished(params: ExperimentConfig, mode: str, model_dir: str) -> bool:
    """Whether `mode` is "train" and all steps are done."""
    step = (tf.train.latest_checkpoint(model_dir) or "").rpartition("-")[2]
    return mode == "train" and step.isdecimal() and int(step) >= params.trainer.train_steps


def write_params(params: ExperimentConfig, experiment: str, model_dir: str) -> None:
    """Writes the configuration and the name of an experiment into `model_dir`, creating it.

    Args:
      params: the experiment.
      experiment: its name; empty: not written.
      model_dir: the folder.

    Raises:
      InputError: the folder cannot be written.
    """
    try:
        train_utils.serialize_config(params, model_dir)
        if experiment:
            checkpoints.write_experiment_name(model_dir, experiment)
    except tf.errors.OpError as error:
        raise InputError(f"model_dir {model_dir!r} cannot be written: {error.message}") from None


def _architecture(model: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a model's configuration that determine its variables, as JSON types."""
    kept = json.loads(json.dumps({key: model[key] for key in ARCHITECTURE if key in model}))
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
        raise invalid(key, f"{before!r} as in model_dir {model_dir!r}", now, "or use another folder")
