# SPDX-License-Identifier: Apache-2.0
"""From what the command line says to the configuration of an experiment, checked before anything is done."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from lambdanet.detection import experiments
from lambdanet.detection.data import annotations, records
from lambdanet.detection.model_garden import ExperimentConfig, hyperparams, train_utils
from lambdanet.detection.modeling import tasks  # noqa: F401
from lambdanet.errors import InputError, unknown

MODES = ("train", "eval", "train_and_eval", "continuous_eval")


def resolve(
    experiment: str,
    config_files: Sequence[str] = (),
    params_override: str = "",
    tpu: str = "",
    tf_data_service: str = "",
) -> ExperimentConfig:
    """Returns the configuration of an experiment, as Model Garden makes it of its flags.

    Args:
      experiment: one of `experiments.available()`.
      config_files: YAML files, each over what comes before it.
      params_override: over all of them: YAML, JSON, the name of a file, or "a.b=1,a.c=2".
      tpu: what `runtime.tpu` is set to.
      tf_data_service: the address of a tf.data service.

    Raises:
      InputError: an unknown experiment or key, a file that cannot be read, or a model that cannot be built.

    Example:
      >>> resolve("lambda_resnet/maskrcnn_resnetfpn_coco", params_override="trainer.train_steps=10")
    """
    if experiment not in experiments.available():
        raise unknown("experiment", experiment, experiments.available())
    params = experiments.get(experiment)
    options = train_utils.ParseConfigOptions(experiment, [], tpu, tf_data_service)
    for file in config_files:
        if not tf.io.gfile.exists(file):
            raise InputError(f"--config_file {file!r} does not exist")
        _override(params, file, f"--config_file {file}")
    params = train_utils.ExperimentParser(options).parse_runtime(params)
    params = train_utils.ExperimentParser(options).parse_data_service(params)
    if params_override:
        _override(params, params_override, "--params_override")
    if hasattr(params.task, "model") and "backbone" in params.task.model:
        experiments.drop_replaced_backbone(params, experiment)
        tasks.check_backbone(params.task.model.backbone)
    if issubclass(type(params.task), tuple(tasks.OWN)):
        tasks.check_model(params.task.model)
    try:
        params.validate()
    except KeyError as error:
        raise InputError(f"{experiment}: {error.args[0]}") from None
    return params


def check(params: ExperimentConfig, mode: str) -> None:
    """Refuses a run that would end, or go wrong without a word, after minutes of building it.

    Args:
      params: of the experiment.
      mode: one of `MODES`.

    Raises:
      InputError: with the key, what it says, and what would do.
    """
    task, trainer = params.task, params.trainer
    if not isinstance(task, tasks.MaskRCNNTask | tasks.RetinaNetTask):
        return
    if task.model.num_classes < 2:
        raise InputError(
            f"task.model.num_classes received {task.model.num_classes}; expected one more than there are "
            "classes, for the background"
        )
    if isinstance(task, tasks.MaskRCNNTask):
        _check_samples(task)
    if "train" in mode:
        _check_data("task.train_data", task.train_data, task.model)
        learning_rate = trainer.optimizer_config.learning_rate
        if learning_rate.type == "stepwise" and max(learning_rate.stepwise.boundaries) >= trainer.train_steps:
            print(
                f"note: the learning rate has steps at {learning_rate.stepwise.boundaries}, and "
                f"trainer.train_steps={trainer.train_steps} does not reach them all",
                flush=True,
            )
    if "eval" in mode:
        _check_data("task.validation_data", task.validation_data, task.model)
        masks = bool(task.model.get("include_mask", False))
        if task.annotation_file:
            annotations.check(task.annotation_file, num_classes=task.model.num_classes, masks=masks)
        elif masks and task.validation_data.num_examples <= 0:
            raise InputError(
                "task.annotation_file is not given; expected the annotation file of the validation data, or "
                "task.validation_data.num_examples to make one from its records"
            )


def _check_data(key: str, data: hyperparams.Config, model: hyperparams.Config) -> None:
    if data.get("tfds_name"):
        return
    if not data.input_path:
        raise InputError(f"{key}.input_path is not given; expected TFRecord files, such as coco/train*")
    if data.decoder.type == "simple_decoder":
        records.look_into(key, data, model)


def _check_samples(task: tasks.MaskRCNNTask) -> None:
    model = task.model
    there = model.roi_generator.num_proposals + task.train_data.parser.max_num_instances
    if model.roi_sampler.num_sampled_rois > there:
        raise InputError(
            f"task.model.roi_sampler.num_sampled_rois received {model.roi_sampler.num_sampled_rois}; there "
            f"are {there}: roi_generator.num_proposals and train_data.parser.max_num_instances together"
        )


def _override(params: ExperimentConfig, given: str, source: str) -> None:
    try:
        hyperparams.override_params_dict(params, given, is_strict=True)
    except KeyError as error:
        raise _unknown_key(params, str(error.args[0]), source) from None
    except (AttributeError, TypeError, ValueError, OSError, tf.errors.OpError) as error:
        raise InputError(f"{source} cannot be read: {' '.join(str(error).split())[:200]}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise InputError(f"{source} is no YAML: {' '.join(str(error).split())[:200]}") from None


def _unknown_key(params: hyperparams.Config, message: str, source: str) -> InputError:
    """Returns the error for a key that does not exist, with its path and those that come near."""
    found = re.search(r"The key '(.*?)' does not exist in <class '.*?(\w+)'>", message)
    if not found:
        return InputError(f"{source}: {message}")
    for path, config in _walk(params):
        if type(config).__name__ == found[2]:
            where = f"key of {path} in {source}" if path else f"key in {source}"
            return unknown(where, found[1], [key for key in config.__dict__ if not key.startswith("_")])
    return InputError(f"{source}: {found[2]} has no key {found[1]!r}")


def _walk(config: Any, path: str = "") -> Iterator[tuple[str, hyperparams.Config]]:
    if dataclasses.is_dataclass(config):
        yield path, config
        for name, value in vars(config).items():
            yield from _walk(value, f"{path}.{name}" if path else name)
