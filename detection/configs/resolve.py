# SPDX-License-Identifier: Apache-2.0
"""Resolves flags to the configuration of an experiment, and checks it before a run."""

import codecs
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from lambdanet.core.errors import InputError, invalid, one_line, unknown
from lambdanet.core.files import read_remote
from lambdanet.detection import experiments
from lambdanet.detection.configs import shapes  # noqa: F401  registers its experiment
from lambdanet.detection.data import annotations, records
from lambdanet.detection.model_garden import ExperimentConfig, hyperparams, train_utils
from lambdanet.detection.modeling import tasks
from lambdanet.training.data.class_names import check_equal

MODES = ("train", "eval", "train_and_eval", "continuous_eval")


def resolve(
    experiment: str,
    config_files: Sequence[str] = (),
    params_override: str = "",
    tpu: str = "",
    tf_data_service: str = "",
) -> ExperimentConfig:
    """Returns the configuration of an experiment, as Model Garden builds it from its flags.

    Args:
      experiment: one of `experiments.list_experiments()`.
      config_files: YAML files, each of which overrides the ones before.
      params_override: overrides of all of them: YAML, JSON, a file name, or "a.b=1,a.c=2".
      tpu: the value of `runtime.tpu`.
      tf_data_service: the address of a tf.data service.

    Raises:
      InputError: an unknown experiment or key, a file that cannot be read, or a model that cannot be built.
    """
    experiments.check_name(experiment)
    params = experiments.get(experiment)
    options = train_utils.ParseConfigOptions(experiment, [], tpu, tf_data_service)
    for file in config_files:
        if not tf.io.gfile.exists(file):
            raise invalid("--config_file", "an existing file", file)
        override(params, file, f"--config_file {file}")
    params = train_utils.ExperimentParser(options).parse_runtime(params)
    params = train_utils.ExperimentParser(options).parse_data_service(params)
    if params_override:
        override(params, params_override, "--params_override")
    if hasattr(params.task, "model") and "backbone" in params.task.model:
        experiments.drop_replaced_backbone(params, experiment)
        tasks.check_backbone(params.task.model.backbone)
    if issubclass(type(params.task), tuple(tasks.TASK_CLASSES)):
        tasks.check_model(params.task.model)
    try:
        params.validate()
    except KeyError as error:
        raise InputError(f"{experiment}: {error.args[0]}") from None
    return params


def check_experiment(params: ExperimentConfig, mode: str) -> None:
    """Rejects a run that would fail, or silently go wrong, after minutes of building the model.

    Args:
      params: the configuration of the experiment.
      mode: one of `MODES`.

    Raises:
      InputError: a value that cannot be used, with its key.
    """
    task = params.task
    trainer = params.trainer
    if not isinstance(task, tasks.MaskRCNNTask | tasks.RetinaNetTask):
        return
    if task.model.num_classes < 2:
        accepted = "at least 2: the number of classes and the background"
        raise invalid("task.model.num_classes", accepted, task.model.num_classes)
    if isinstance(task, tasks.MaskRCNNTask):
        _check_samples(task)
    if "train" in mode:
        _check_data(task, "train_data")
        learning_rate = trainer.optimizer_config.learning_rate
        if (
            learning_rate.type == "stepwise"
            and max(learning_rate.stepwise.boundaries) >= trainer.train_steps
        ):
            print(
                f"note: trainer.train_steps={trainer.train_steps} ends before the last step of the learning "
                f"rate at {learning_rate.stepwise.boundaries}",
                flush=True,
            )
    if "eval" in mode:
        masks = bool(task.model.get("include_mask", False))
        if task.annotation_file:
            annotations.check_annotations(
                task.annotation_file, num_classes=task.model.num_classes, masks=masks
            )
            content = read_remote(task.annotation_file)
            if content.startswith(codecs.BOM_UTF8):  # which pycocotools does not read
                accepted = "JSON in UTF-8 without a byte order mark"
                raise invalid("task.annotation_file", accepted, task.annotation_file)
        elif masks and task.validation_data.num_examples <= 0:
            accepted = "the annotation file of the validation data"
            hint = "with task.validation_data.num_examples it is generated from the records"
            raise invalid("task.annotation_file", accepted, task.annotation_file, hint)
        _check_data(task, "validation_data", task.annotation_file)


def _check_data(task: Any, part: str, annotation_file: str = "") -> None:
    """Checks a part of the data; the names of its classes must be those of the annotation file."""
    key = f"task.{part}"
    data = getattr(task, part)
    if data.get("tfds_name"):
        return
    if not data.input_path:
        raise invalid(
            f"{key}.input_path", "TFRecord files, such as coco/train*", data.input_path
        )
    if data.decoder.type == "simple_decoder":
        found = records.check_first_records(key, data, task.model)
        if annotation_file:
            count = task.model.num_classes
            names = annotations.read_class_names(annotation_file, count)
            expected = [found.get(number, name) for number, name in enumerate(names)]
            check_equal(names, expected, annotation_file, key)


def _check_samples(task: tasks.MaskRCNNTask) -> None:
    sampled = task.model.roi_sampler.num_sampled_rois
    total = (
        task.model.roi_generator.num_proposals
        + task.train_data.parser.max_num_instances
    )
    if sampled > total:
        accepted = f"at most {total}, roi_generator.num_proposals + train_data.parser.max_num_instances"
        raise invalid("task.model.roi_sampler.num_sampled_rois", accepted, sampled)


def override(params: ExperimentConfig, overrides: str, source: str) -> None:
    """Overrides values of a configuration in place.

    Args:
      params: the configuration.
      overrides: YAML, JSON, a file name, or "a.b=1,a.c=2".
      source: the name of the overrides in messages.

    Raises:
      InputError: the text cannot be parsed, or has an unknown key.
    """
    try:
        hyperparams.override_params_dict(params, overrides, is_strict=True)
    except KeyError as error:
        raise _unknown_key(params, str(error.args[0]), source) from None
    except (AttributeError, TypeError, ValueError, OSError, tf.errors.OpError) as error:
        raise InputError(f"{source} cannot be read: {one_line(error)[:200]}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise InputError(
            f"{source} must be valid YAML: {one_line(error)[:200]}"
        ) from None


def _unknown_key(params: hyperparams.Config, message: str, source: str) -> InputError:
    """Returns the error for an unknown key, with its path and the nearest keys."""
    found = re.search(r"The key '(.*?)' does not exist in <class '.*?(\w+)'>", message)
    if not found:
        return InputError(f"{source}: {message}")
    for path, config in walk(params):
        if type(config).__name__ == found[2]:
            where = f"key of {path} in {source}" if path else f"key in {source}"
            return unknown(
                where,
                found[1],
                [key for key in config.__dict__ if not key.startswith("_")],
            )
    return InputError(f"{source}: {found[2]} has no key {found[1]!r}")


def walk(config: Any, path: str = "") -> Iterator[tuple[str, hyperparams.Config]]:
    """Yields the key and the configuration of each part of a configuration, and of itself."""
    if dataclasses.is_dataclass(config):
        yield path, config
        for name, value in vars(config).items():
            yield from walk(value, f"{path}.{name}" if path else name)
