# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates the detector of an experiment."""

from typing import Any

import tensorflow as tf

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.detection.configs import resolve
from lambdanet.detection.data import records
from lambdanet.detection.model_garden import (
    ExperimentConfig,
    distribute_utils,
    hyperparams,
    orbit,
    performance,
    summary_manager,
    task_factory,
    train_lib,
    train_utils,
)
from lambdanet.detection.run import model_dir as model_dirs
from lambdanet.detection.run import train_step
from lambdanet.models.tf_keras_model import TfKerasModel


def run_experiment(
    params: ExperimentConfig,
    mode: str,
    model_dir: str,
    strategy: tf.distribute.Strategy | None = None,
    async_checkpoints: bool = False,
    experiment: str = "",
) -> None:
    """Trains, evaluates, or both, as Model Garden does.

    Training resumes from the newest checkpoint in `model_dir`; without one, it starts from
    `task.init_checkpoint`.

    Args:
      params: the experiment, as `resolve.resolve` returns it.
      mode: one of `resolve.MODES`.
      model_dir: the folder for params.yaml, checkpoints and TensorBoard logs.
      strategy: the distribution strategy; default: the one that `params.runtime` names.
      async_checkpoints: whether checkpoints are written in the background.
      experiment: the name of the experiment, kept in `model_dir` for the export.

    Raises:
      InputError: a value of the configuration or a record cannot be used.
    """
    resolve.check_experiment(params, mode)
    model_dirs.check_model_dir(params, mode, model_dir)
    if model_dirs.is_finished(params, mode, model_dir):
        print(
            f"{model_dir}: all {params.trainer.train_steps} steps are done", flush=True
        )
        return
    strategy = strategy or _create_strategy(params.runtime)
    _check_batch_sizes(params, mode, strategy.num_replicas_in_sync)
    if "train" in mode:
        model_dirs.write_params(params, experiment, model_dir)
    if params.runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype)
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=model_dir)
    summaries = summary_manager.maybe_build_eval_summary_manager(
        params=params, model_dir=model_dir
    )
    try:
        with strategy.scope():
            trainer = _create_trainer(task, params, mode, model_dir)
        train_lib.run_experiment(
            distribution_strategy=strategy,
            task=task,
            mode=mode,
            params=params,
            model_dir=model_dir,
            trainer=trainer,
            controller_cls=_Controller,
            eval_summary_manager=summaries,
            enable_async_checkpointing=async_checkpoints,
        )
    except tf.errors.OpError as error:
        failed = records.as_input_error(error)
        if failed is None:
            raise
        raise failed from None


class _Controller(orbit.Controller):
    """Model Garden's controller; devices draw different random numbers also after a checkpoint was read."""

    def restore_checkpoint(self, checkpoint_path: str | None = None) -> str | None:
        try:
            restored = super().restore_checkpoint(checkpoint_path)
        except ValueError as error:
            raise InputError(
                f"a checkpoint does not fit the model: {one_line(error)}"
            ) from None
        if restored and self.trainer is not None:
            with self.strategy.scope():
                for part in self.trainer.model.submodules:
                    if isinstance(part, TfKerasModel):
                        part.draw_different_numbers()
        return restored


def _create_trainer(
    task: Any, params: ExperimentConfig, mode: str, model_dir: str
) -> Any:
    """Returns Model Garden's trainer, whose training step is traced once."""
    training = "train" in mode
    best = train_utils.maybe_create_best_ckpt_exporter(params, model_dir)
    trainer = train_utils.create_trainer(
        params, task, training, "eval" in mode, checkpoint_exporter=best
    )
    if training:
        train_step.create_variables(trainer.optimizer, trainer.model)
    return trainer


def _create_strategy(runtime: hyperparams.Config) -> tf.distribute.Strategy:
    try:
        return distribute_utils.get_distribution_strategy(
            distribution_strategy=runtime.distribution_strategy,
            all_reduce_alg=runtime.all_reduce_alg,
            num_gpus=runtime.num_gpus,
            tpu_address=runtime.tpu,
        )
    except ValueError as error:
        raise InputError(
            f"cannot create runtime.distribution_strategy={runtime.distribution_strategy} with "
            f"num_gpus={runtime.num_gpus} and --tpu={runtime.tpu or ''}: {one_line(error)}"
        ) from None


def _check_batch_sizes(params: ExperimentConfig, mode: str, replicas: int) -> None:
    for part, name in (("train", "train_data"), ("eval", "validation_data")):
        size = getattr(params.task, name).global_batch_size
        if part in mode and (size < 1 or size % replicas):
            accepted = f"a multiple of the number of replicas, {replicas}"
            raise invalid(f"task.{name}.global_batch_size", accepted, size)
