# SPDX-License-Identifier: Apache-2.0
"""Experiments for `--experiment`: Model Garden's own with backbones of the zoo, and the papers'.

lambda_resnet/STOCK           Model Garden's experiments with a ResNet that detect, segment or classify
mobilenet_v2_lambda/STOCK     each of those with MobileNetV2
maskrcnn_lambda_resnet_coco   Bello 2021, appendix F.3; with `:MODEL`, a row of Table 14
maskrcnn_halo_resnet_coco     Vaswani et al. 2021, appendix C.4; with `:ROW`, a row of Table A4

Importing this module registers these experiments with Model Garden, and their backbones and tasks.
"""

import functools
from typing import Any

from lambdanet.core.errors import check_known
from lambdanet.detection.model_garden import (
    ExperimentConfig,
    decoders,
    exp_factory,
    hyperparams,
)
from lambdanet.detection.modeling import tasks
from lambdanet.detection.modeling.backbones import (
    Backbone,
    LambdaResNet,
    MobileNetV2Lambda,
)
from lambdanet.models import zoo
from lambdanet.models.output_stride import NATIVE

# Images of COCO 2017.
COCO_TRAIN = 118_287
COCO_VAL = 5_000
# Divides the 5,000 validation images, as a TPU requires, and is a multiple of the 8 cores of a host.
EVAL_BATCH_SIZE = 40

TABLE_14 = (
    "resnet_rs_101_no_se",
    "resnet_rs_101",
    "lambda_resnet_101",
    "resnet_rs_152_no_se",
    "resnet_rs_152",
    "lambda_resnet_152",
)
# Row -> options of the backbone. Without the first row, which is "in lit".
TABLE_A4: dict[str, dict[str, Any]] = {
    "resnet_50_se_8": {"model_id": "resnet_50_se_8"},
    "halo_resnet_50": {"model_id": "halo_resnet_50"},
    "halo_resnet_50_block_32": {"model_id": "halo_resnet_50", "block_size": 32},
    "resnet_101_se_8": {"model_id": "resnet_101_se_8"},
    "halo_resnet_101": {"model_id": "halo_resnet_101"},
}


def list_experiments() -> list[str]:
    """Returns the names of all experiments, Model Garden's among them."""

    def walk(registered: dict[str, Any], prefix: str = "") -> list[str]:
        found: list[str] = []
        for key, value in registered.items():
            found += (
                walk(value, f"{prefix}{key}/")
                if isinstance(value, dict)
                else [prefix + key]
            )
        return found

    return walk(exp_factory._REGISTERED_CONFIGS)


def check_name(name: str) -> None:
    """Checks the name of an experiment.

    Args:
      name: the name.

    Raises:
      InputError: it is not in `list_experiments()`; the message has the nearest names.
    """
    check_known("experiment", name, list_experiments())


def get(name: str) -> ExperimentConfig:
    """Returns an experiment with lambdanet's task, which accepts the backbones of the zoo.

    Args:
      name: one of `list_experiments()`; see `check_name`.

    Returns:
      Its configuration, a new one with each call.
    """
    config = exp_factory.get_exp_config(name)
    config.task = tasks.to_zoo_task(config.task)
    return config


def drop_replaced_backbone(config: ExperimentConfig, name: str) -> None:
    """Removes settings for the experiment's original backbone if the configuration has another one.

    Args:
      config: the configuration, changed in place: restrictions on the original backbone are removed, and so
        is the experiment's own initial checkpoint.
      name: the name of the experiment.
    """
    stock = exp_factory.get_exp_config(name)
    original = stock.task.model.backbone.type
    if config.task.model.backbone.type == original:
        return
    if config.task.init_checkpoint == stock.task.init_checkpoint:
        config.task.init_checkpoint = None
    key = f"task.model.backbone.{original}."
    config._restrictions = [rule for rule in config._restrictions if key not in rule]


def with_zoo_backbone(stock: str, backbone: Backbone) -> ExperimentConfig:
    """Returns an experiment of Model Garden with a backbone of the zoo, trained from scratch.

    Args:
      stock: the name of the experiment.
      backbone: the configuration of the backbone that replaces the experiment's own.

    Returns:
      A new configuration, without the experiment's own initial checkpoint and the restrictions on its
      backbone.
    """
    config = get(stock)
    config.task.model.backbone = backbone
    drop_replaced_backbone(config, stock)
    return config


def equivalent_backbone(stock: hyperparams.Config) -> Backbone | None:
    """Returns the backbone of the zoo that replaces one of Model Garden, or None if there is none."""
    config = stock.get()
    rate: Any = config.get("stochastic_depth_drop_rate") if config else None
    # Only Model Garden's backbones for segmentation have an output stride.
    output_stride = getattr(config, "output_stride", None) or NATIVE
    if stock.type == "mobilenet" and config.model_id == "MobileNetV2":
        options = MobileNetV2Lambda(
            stochastic_depth_drop_rate=rate or 0.0, output_stride=output_stride
        )
        return Backbone(type="mobilenet_v2_lambda", mobilenet_v2_lambda=options)
    is_resnet = stock.type in ("resnet", "dilated_resnet")
    model_id = f"lambda_resnet_{config.model_id}" if is_resnet else ""
    if model_id not in zoo.MODELS:
        return None
    options = LambdaResNet(
        model_id=model_id,
        stochastic_depth_drop_rate=rate,
        bn_trainable=getattr(config, "bn_trainable", True),
        output_stride=output_stride,
    )
    return Backbone(type="lambda_resnet", lambda_resnet=options)


def _register_stock_experiments() -> None:
    for stock in list_experiments():
        task = exp_factory.get_exp_config(stock).task
        backbone = (
            equivalent_backbone(task.model.backbone)
            if type(task) in tasks.TASK_CLASSES
            else None
        )
        if backbone is not None:
            make = functools.partial(with_zoo_backbone, stock, backbone)
            exp_factory.register_config_factory(f"{backbone.type}/{stock}")(make)


_register_stock_experiments()


@exp_factory.register_config_factory("lambda_resnet/cascadercnn_resnetfpn_coco")
def cascadercnn_lambda_resnet() -> ExperimentConfig:
    """Cascade R-CNN with an FPN; Model Garden's has SpineNet, which needs no decoder."""
    config = with_zoo_backbone("cascadercnn_spinenet_coco", Backbone())
    config.task.model.decoder = decoders.Decoder(type="fpn", fpn=decoders.FPN())
    return config


def maskrcnn_lambda_resnet_coco(
    model_id: str = "lambda_resnet_152",
) -> ExperimentConfig:
    """Mask R-CNN as in Bello 2021, appendix F.3: 1024x1024, from scratch, 130,000 steps.

    Anchors, levels, batch normalization and all else that the paper omits have Model Garden's defaults.

    Args:
      model_id: the name of the backbone in the zoo.

    Returns:
      A new configuration.
    """
    steps = 130_000
    batch_size = 256
    config = with_zoo_backbone(
        "maskrcnn_resnetfpn_coco",
        Backbone(lambda_resnet=LambdaResNet(model_id=model_id)),
    )
    task = config.task
    task.model.input_size = [1024, 1024, 3]
    task.model.norm_activation.use_sync_bn = True
    task.losses.l2_weight_decay = 4e-5
    task.train_data.global_batch_size = batch_size
    task.train_data.parser.aug_scale_min = 0.1
    task.train_data.parser.aug_scale_max = 2.0
    _set_steps(config, steps, batch_size)
    boundaries = [round(steps * fraction) for fraction in (0.9, 0.95, 0.975)]
    values = [0.32, 0.032, 0.0032, 0.00032]
    _set_learning_rate(config, boundaries, values, warmup_steps=1000, warmup_from=0.0)
    return config


def maskrcnn_halo_resnet_coco(row: str = "halo_resnet_50") -> ExperimentConfig:
    """Mask R-CNN as in Vaswani et al. 2021, appendix C.4: 1024x1024, 67,500 steps, from ImageNet.

    `task.init_checkpoint` must name a trained backbone. The "warmup of 500 steps with a fixed learning rate
    of 2/300" is read as in the code that the appendix cites: a linear warmup from 2/300. 67,500 steps are
    36.5 epochs; the appendix also mentions 32.

    Args:
      row: a key of `TABLE_A4`.
    """
    batch_size = 64
    config = with_zoo_backbone(
        "maskrcnn_resnetfpn_coco", Backbone(lambda_resnet=LambdaResNet(**TABLE_A4[row]))
    )
    task = config.task
    task.model.input_size = [1024, 1024, 3]
    task.losses.l2_weight_decay = 4e-5
    task.train_data.global_batch_size = batch_size
    task.train_data.parser.aug_scale_min = 4 / 5
    task.train_data.parser.aug_scale_max = 5 / 4
    _set_steps(config, 67_500, batch_size)
    _set_learning_rate(
        config,
        boundaries=[60_000, 65_000],
        values=[0.1, 0.01, 0.001],
        warmup_steps=500,
        warmup_from=2 / 300,
    )
    return config


def _set_steps(config: ExperimentConfig, steps: int, batch_size: int) -> None:
    """Sets the number of training steps, and a validation on all images every ten epochs."""
    config.task.init_checkpoint_modules = "backbone"
    config.task.validation_data.global_batch_size = EVAL_BATCH_SIZE
    config.task.validation_data.drop_remainder = True
    trainer = config.trainer
    epoch = COCO_TRAIN // batch_size
    trainer.train_steps = steps
    trainer.steps_per_loop = trainer.summary_interval = epoch
    trainer.checkpoint_interval = trainer.validation_interval = 10 * epoch
    trainer.validation_steps = COCO_VAL // EVAL_BATCH_SIZE


def _set_learning_rate(
    config: ExperimentConfig,
    boundaries: list[int],
    values: list[float],
    warmup_steps: int,
    warmup_from: float,
) -> None:
    """Sets a stepwise learning rate after a warmup; a value holds up to and including its boundary."""
    optimizer = config.trainer.optimizer_config
    optimizer.optimizer.type = "sgd"
    optimizer.optimizer.sgd.momentum = 0.9
    optimizer.learning_rate.type = "stepwise"
    optimizer.learning_rate.stepwise.boundaries = boundaries
    optimizer.learning_rate.stepwise.values = values
    optimizer.warmup.type = "linear"
    optimizer.warmup.linear.warmup_steps = warmup_steps
    optimizer.warmup.linear.warmup_learning_rate = warmup_from


for _make, _rows in (
    (maskrcnn_lambda_resnet_coco, TABLE_14),
    (maskrcnn_halo_resnet_coco, TABLE_A4),
):
    exp_factory.register_config_factory(_make.__name__)(_make)
    for _row in _rows:
        exp_factory.register_config_factory(f"{_make.__name__}:{_row}")(
            functools.partial(_make, _row)
        )
