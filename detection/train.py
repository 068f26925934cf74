# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates a detector: `python -m lambdanet.detection.train`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag, RepeatedFlag, switch
from lambdanet.errors import check_known


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.configs import resolve
    from lambdanet.detection.run import train

    check_known("mode", values.mode, resolve.MODES)
    params = resolve.resolve(
        values.experiment,
        values.config_file or (),
        values.params_override or "",
        values.tpu or "",
        values.tf_data_service or "",
    )
    train.run_experiment(
        params,
        values.mode,
        values.model_dir,
        async_checkpoints=values.enable_async_checkpointing,
        experiment=values.experiment,
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
task.init_checkpoint may be a checkpoint of Model Garden, a model_dir of `lambdanet train`, a .safetensors or
.weights.h5 file, or published weights, such as imagenet."""

COMMAND = Command(
    "train",
    "trains a detector, evaluates it, or both",
    _run,
    flags=(
        Flag(
            "experiment",
            "NAME",
            "experiment, such as maskrcnn_lambda_resnet_coco; see below",
            required=True,
        ),
        Flag(
            "mode",
            "MODE",
            "train, eval, train_and_eval or continuous_eval",
            required=True,
        ),
        Flag(
            "model_dir",
            "DIR",
            "folder for checkpoints, params.yaml and logs",
            required=True,
        ),
        RepeatedFlag(
            "config_file", "FILE", "YAML file that overrides the experiment; repeatable"
        ),
        Flag(
            "params_override",
            "TEXT",
            "overrides both: YAML, JSON, a file, or a.b=1,a.c=2",
        ),
        Flag(
            "tpu",
            "ADDRESS",
            "TPU: local, a name or grpc://...; needs runtime.distribution_strategy=tpu",
        ),
        Flag(
            "tf_data_service",
            "ADDRESS",
            "address of a tf.data service that reads the data",
        ),
        switch(
            "enable_async_checkpointing",
            "wait until each checkpoint is written, instead of training on",
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
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
