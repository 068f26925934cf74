# SPDX-License-Identifier: Apache-2.0
"""The program that trains and evaluates a detector: `python -m lambdanet.detection.train`."""

import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag
from lambdanet.errors import InputError, unknown

if TYPE_CHECKING:
    import tensorflow as tf

    from lambdanet.detection.model_garden import ExperimentConfig


def run(
    params: "ExperimentConfig",
    mode: str,
    model_dir: str,
    strategy: "tf.distribute.Strategy | None" = None,
    async_checkpoints: bool = False,
    experiment: str = "",
) -> None:
    """Trains, evaluates, or both, as Model Garden does.

    It goes on from the newest checkpoint in `model_dir`; where there is none, from `task.init_checkpoint`.

    Args:
      params: of the experiment, as `configuration.resolve` returns it.
      mode: one of `configuration.MODES`.
      model_dir: a folder for params.yaml, checkpoints and what TensorBoard reads.
      strategy: distributes the work; None: as `params.runtime` says.
      async_checkpoints: write them while training goes on.
      experiment: its name, kept in `model_dir` so that the export knows it.

    Raises:
      InputError: something in the configuration or the data cannot be used.
    """
    import tensorflow as tf

    from lambdanet.detection.configs import resolve
    from lambdanet.detection.data import records
    from lambdanet.detection.model_garden import performance, summary_manager, task_factory, train_lib
    from lambdanet.detection.run import model_dir as model_dirs

    resolve.check(params, mode)
    model_dirs.check(params, mode, model_dir)
    if model_dirs.finished(params, mode, model_dir):
        print(f"{model_dir}: trained to the end, {params.trainer.train_steps} steps", flush=True)
        return
    strategy = strategy or _strategy(params.runtime)
    _check_batches(params, mode, strategy.num_replicas_in_sync)
    if "train" in mode:
        model_dirs.begin(params, experiment, model_dir)
    if params.runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(params.runtime.mixed_precision_dtype)
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=model_dir)
    try:
        train_lib.run_experiment(
            distribution_strategy=strategy,
            task=task,
            mode=mode,
            params=params,
            model_dir=model_dir,
            eval_summary_manager=summary_manager.maybe_build_eval_summary_manager(
                params=params, model_dir=model_dir
            ),
            enable_async_checkpointing=async_checkpoints,
        )
    except tf.errors.OpError as error:
        raise records.explained(error) or error from None
    except ValueError as error:
        if isinstance(error, InputError) or "incompatible tensor" not in str(error):
            raise
        raise InputError(f"model_dir {model_dir!r} has a checkpoint of another model: {error}") from None


def _strategy(runtime: Any) -> "tf.distribute.Strategy":
    from lambdanet.detection.model_garden import distribute_utils

    try:
        return distribute_utils.get_distribution_strategy(
            distribution_strategy=runtime.distribution_strategy,
            all_reduce_alg=runtime.all_reduce_alg,
            num_gpus=runtime.num_gpus,
            tpu_address=runtime.tpu,
        )
    except ValueError as error:
        raise InputError(
            f"runtime.distribution_strategy={runtime.distribution_strategy} with num_gpus={runtime.num_gpus} "
            f"and --tpu={runtime.tpu or ''} cannot be had: {' '.join(str(error).split())}"
        ) from None


def _check_batches(params: "ExperimentConfig", mode: str, replicas: int) -> None:
    for part, name in (("train", "train_data"), ("eval", "validation_data")):
        size = getattr(params.task, name).global_batch_size
        if part in mode and (size < 1 or size % replicas):
            raise InputError(
                f"task.{name}.global_batch_size received {size}; expected a multiple of the number of "
                f"replicas, {replicas}"
            )


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.configs import resolve

    if values.mode not in resolve.MODES:
        raise unknown("mode", values.mode, resolve.MODES)
    params = resolve.resolve(
        values.experiment,
        values.config_file or (),
        values.params_override or "",
        values.tpu or "",
        values.tf_data_service or "",
    )
    run(
        params,
        values.mode,
        values.model_dir,
        async_checkpoints=values.enable_async_checkpointing,
        experiment=values.experiment,
    )


NOTES = """\
experiments:
  maskrcnn_lambda_resnet_coco  as in the paper; with `:MODEL` a line of Table 14, such as :resnet_rs_101
  maskrcnn_halo_resnet_coco    as in the HaloNet paper; with `:MODEL` a line of Table A4
  lambda_resnet/NAME           Model Garden's experiment NAME with a LambdaResNet, such as
                               lambda_resnet/maskrcnn_resnetfpn_coco
  mobilenet_v2_lambda/NAME     the same with MobileNetV2 and lambda layers
  NAME                         Model Garden's own; task.model.backbone may be {type: lambda_resnet} here too
  maskrcnn_lambda_resnet_shapes  small, for the data of lambdanet.detection.shapes
task.init_checkpoint may be a checkpoint of Model Garden, a model_dir of `lambdanet train`, a .safetensors or
.weights.h5 file, or published weights, such as imagenet:lambda_resnet50ts."""

COMMAND = Command(
    "train",
    "trains a detector, evaluates it, or both",
    _run,
    flags=(
        Flag("experiment", "NAME", "such as maskrcnn_lambda_resnet_coco; see below", required=True),
        Flag("mode", "MODE", "train, eval, train_and_eval or continuous_eval", required=True),
        Flag("model_dir", "DIR", "for checkpoints, params.yaml and logs", required=True),
        Flag(
            "config_file",
            "FILE",
            "YAML over the experiment; may be repeated",
            define=flags.DEFINE_multi_string,
        ),
        Flag("params_override", "TEXT", "over all of it: YAML, JSON, a file, or a.b=1,a.c=2"),
        Flag("tpu", "ADDRESS", "local, a name or grpc://...; with runtime.distribution_strategy=tpu"),
        Flag("tf_data_service", "ADDRESS", "of a tf.data service that reads the data"),
        Flag(
            "enable_async_checkpointing",
            "",
            "write checkpoints while training goes on",
            define=flags.DEFINE_boolean,
            default=True,
        ),
    ),
    examples=(
        "python -m lambdanet.detection.train --experiment=maskrcnn_lambda_resnet_coco --mode=train_and_eval "
        "--model_dir=DIR --tpu=local "
        "--params_override=runtime.distribution_strategy=tpu,task.train_data.input_path=DIR/train*",
        "python -m lambdanet.detection.train --experiment=lambda_resnet/retinanet_resnetfpn_coco "
        "--mode=train --model_dir=DIR --params_override=task.init_checkpoint=MODEL_DIR",
        "python -m lambdanet.detection.train --experiment=maskrcnn_lambda_resnet_coco --mode=eval "
        "--model_dir=DIR --config_file=DIR/params.yaml",
    ),
    notes=lambda: NOTES,
    module="lambdanet.detection.train",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
