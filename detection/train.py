# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates a detector: `python -m lambdanet.detection.train`."""

import sys
from collections.abc import Sequence
from typing import Annotated

from lambdanet.core import command_line
from lambdanet.core.commands import Name, RemoteFolder, Repeated, command
from lambdanet.core.errors import check_known, invalid
from lambdanet.core.onednn import use_onednn


def train_detector(
    experiment: Name,
    mode: str,
    model_dir: RemoteFolder,
    config_file: Annotated[Sequence[str], Repeated, "FILE_OR_URL"] = (),
    params_override: Annotated[str, "TEXT"] = "",
    tpu: Annotated[str, "ADDRESS"] = "",
    tf_data_service: Annotated[str, "ADDRESS"] = "",
    enable_async_checkpointing: Annotated[
        bool, "--mode=train or --mode=train_and_eval"
    ] = True,
) -> None:
    """Trains a detector, evaluates it, or both.

    Args:
      experiment: experiment, such as maskrcnn_lambda_resnet_coco; see below.
      mode: train, eval, train_and_eval or continuous_eval.
      model_dir: folder for checkpoints, params.yaml and logs.
      config_file: YAML file that overrides the experiment; repeatable.
      params_override: overrides both: YAML, JSON, a file, or a.b=1,a.c=2.
      tpu: TPU: local, a name or grpc://...; needs runtime.distribution_strategy=tpu.
      tf_data_service: address of a tf.data service that reads the data.
      enable_async_checkpointing: wait until each checkpoint is written, instead of training on (default:
        train on).
    """
    use_onednn()

    from lambdanet.detection.configs import resolve
    from lambdanet.detection.run import train

    check_known("mode", mode, resolve.MODES)
    params = resolve.resolve(
        experiment,
        config_file,
        params_override,
        tpu,
        tf_data_service,
    )
    strategy = params.runtime.distribution_strategy
    if tpu and strategy != "tpu":
        raise invalid("runtime.distribution_strategy", "tpu with --tpu", strategy)
    train.run_experiment(
        params,
        mode,
        model_dir,
        async_checkpoints=enable_async_checkpointing,
        experiment=experiment,
    )


NOTES = """\
experiments:
  maskrcnn_lambda_resnet_coco    the lambda paper's; with `:MODEL`, a row of Table 14, such as :resnet_rs_101
  maskrcnn_halo_resnet_coco      the HaloNet paper's; with `:ROW`, a row of Table A4
  lambda_resnet/NAME             Model Garden's experiment NAME with any ResNet of the zoo, such as
                                 lambda_resnet/maskrcnn_resnetfpn_coco
  mobilenet_v2_lambda/NAME       Model Garden's experiment NAME with MobileNetV2 and lambda layers
  NAME                           Model Garden's own, also with task.model.backbone={type: lambda_resnet}
  maskrcnn_lambda_resnet_shapes  a small one for the data set of lambdanet.detection.shapes
task.init_checkpoint may be a checkpoint of Model Garden, a model_dir of `lambdanet train`, a .safetensors
file, or published weights, such as imagenet."""

COMMAND = command(
    train_detector,
    "train",
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
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
