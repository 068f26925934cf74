# SPDX-License-Identifier: Apache-2.0
"""Experiments, as `--experiment` takes them: Model Garden's own with backbones of the zoo, and the papers'.

lambda_resnet/STOCK           each of Model Garden's experiments of detection and classification with a ResNet
mobilenet_v2_lambda/STOCK     each of those with MobileNetV2
maskrcnn_lambda_resnet_coco   Bello 2021, appendix F.3; `:MODEL` after it is a line of Table 14
maskrcnn_halo_resnet_coco     Vaswani et al. 2021, appendix C.4; `:MODEL` after it is a line of Table A4

Importing this module registers them, and the backbones and tasks that they need.
"""

import functools
from typing import Any

from lambdanet.detection.model_garden import ExperimentConfig, decoders, exp_factory, hyperparams
from lambdanet.detection.modeling import tasks
from lambdanet.detection.modeling.backbones import Backbone, LambdaResNet, MobileNetV2Lambda
from lambdanet.models import zoo

COCO_TRAIN, COCO_VAL = 118_287, 5_000  # images of COCO 2017
# Divides the 5,000 validation images, as a TPU needs, and is a multiple of the 8 cores of a host.
EVAL_BATCH_SIZE = 40

TABLE_14 = (
    "resnet_rs_101_no_se",
    "resnet_rs_101",
    "lambda_resnet_101",
    "resnet_rs_152_no_se",
    "resnet_rs_152",
    "lambda_resnet_152",
)
# Without the first line, which is "in lit"; row -> the model, and what differs from it.
TABLE_A4: dict[str, dict[str, Any]] = {
    "resnet_50_se_8": {"model_id": "resnet_50_se_8"},
    "halo_resnet_50": {"model_id": "halo_resnet_50"},
    "halo_resnet_50_block_32": {"model_id": "halo_resnet_50", "block_size": 32},
    "resnet_101_se_8": {"model_id": "resnet_101_se_8"},
    "halo_resnet_101": {"model_id": "halo_resnet_101"},
}


def available() -> list[str]:
    """Returns the names of all experiments, Model Garden's among them."""

    def walk(registered: dict, prefix: str = "") -> list[str]:
        found: list[str] = []
        for key, value in registered.items():
            found += walk(value, f"{prefix}{key}/") if isinstance(value, dict) else [prefix + key]
        return found

    return walk(exp_factory._REGISTERED_CONFIGS)


def get(name: str) -> ExperimentConfig:
    """Returns an experiment with the tasks of lambdanet, whose models can choose the backbones of the zoo.

    Args:
      name: one of `available()`.
    """
    config = exp_factory.get_exp_config(name)
    config.task = tasks.own(config.task)
    return config


def drop_replaced_backbone(config: ExperimentConfig, name: str) -> None:
    """Drops what an experiment says about its backbone, if the configuration now has another one.

    Args:
      config: that of the experiment, changed: restrictions on the backbone go, and a checkpoint to start
        from, unless the configuration names another.
      name: of the experiment.
    """
    stock = exp_factory.get_exp_config(name)
    before = stock.task.model.backbone.type
    if config.task.model.backbone.type == before:
        return
    if config.task.init_checkpoint == stock.task.init_checkpoint:
        config.task.init_checkpoint = None
    of_backbone = f"task.model.backbone.{before}."
    config._restrictions = [rule for rule in config._restrictions if of_backbone not in rule]


def twin(stock: str, backbone: Backbone) -> ExperimentConfig:
    """Returns an experiment of Model Garden with another backbone, which starts from nothing.

    Args:
      stock: its name.
      backbone: of the zoo.
    """
    config = get(stock)
    config.task.model.backbone = backbone
    drop_replaced_backbone(config, stock)
    return config


def like(theirs: hyperparams.Config) -> Backbone | None:
    """Returns the backbone of the zoo in the place of one of Model Garden; None where there is none."""
    own = theirs.get()
    rate = own and own.get("stochastic_depth_drop_rate")
    if theirs.type == "mobilenet" and own.model_id == "MobileNetV2":
        options = MobileNetV2Lambda(stochastic_depth_drop_rate=rate or 0.0)
        return Backbone(type="mobilenet_v2_lambda", mobilenet_v2_lambda=options)
    model_id = f"lambda_resnet_{own.model_id}" if theirs.type == "resnet" else ""
    if model_id not in zoo.MODELS:
        return None
    options = LambdaResNet(model_id=model_id, stochastic_depth_drop_rate=rate, bn_trainable=own.bn_trainable)
    return Backbone(type="lambda_resnet", lambda_resnet=options)


def _register_twins() -> None:
    for stock in available():
        task = exp_factory.get_exp_config(stock).task
        backbone = like(task.model.backbone) if type(task) in tasks.OWN else None
        if backbone is not None:
            make = functools.partial(twin, stock, backbone)
            exp_factory.register_config_factory(f"{backbone.type}/{stock}")(make)


_register_twins()


@exp_factory.register_config_factory("lambda_resnet/cascadercnn_resnetfpn_coco")
def cascade() -> ExperimentConfig:
    """Cascade R-CNN: Model Garden's has SpineNet, which needs no decoder; here an FPN of the same levels."""
    config = twin("cascadercnn_spinenet_coco", Backbone())
    config.task.model.decoder = decoders.Decoder(type="fpn", fpn=decoders.FPN())
    return config


def maskrcnn_lambda_resnet_coco(model_id: str = "lambda_resnet_152") -> ExperimentConfig:
    """Mask R-CNN as in Bello 2021, appendix F.3: 1024x1024, from scratch, 130,000 steps.

    What the paper does not say, anchors, levels and the constants of batch normalisation among it, is as
    Model Garden has it.

    Args:
      model_id: of the backbone.
    """
    steps, batch_size = 130_000, 256
    config = twin("maskrcnn_resnetfpn_coco", Backbone(lambda_resnet=LambdaResNet(model_id=model_id)))
    task = config.task
    task.model.input_size = [1024, 1024, 3]
    task.model.norm_activation.use_sync_bn = True
    task.losses.l2_weight_decay = 4e-5
    task.train_data.global_batch_size = batch_size
    task.train_data.parser.aug_scale_min, task.train_data.parser.aug_scale_max = 0.1, 2.0
    _train(config, steps, batch_size)
    _learn(
        config,
        boundaries=[round(steps * fraction) for fraction in (0.9, 0.95, 0.975)],
        values=[0.32, 0.032, 0.0032, 0.00032],
        warmup_steps=1000,
        warmup_from=0.0,
    )
    return config


def maskrcnn_halo_resnet_coco(row: str = "halo_resnet_50") -> ExperimentConfig:
    """Mask R-CNN as in Vaswani et al. 2021, appendix C.4: 1024x1024, 67,500 steps, from ImageNet.

    `task.init_checkpoint` must name the backbone that was trained before. The "warmup of 500 steps with a
    fixed learning rate of 2/300" is read as that of the code which the appendix says it used: linear from
    there. 67,500 steps are 36.5 epochs, where the appendix also speaks of 32.

    Args:
      row: of `TABLE_A4`.
    """
    batch_size = 64
    config = twin("maskrcnn_resnetfpn_coco", Backbone(lambda_resnet=LambdaResNet(**TABLE_A4[row])))
    task = config.task
    task.model.input_size = [1024, 1024, 3]
    task.losses.l2_weight_decay = 4e-5
    task.train_data.global_batch_size = batch_size
    task.train_data.parser.aug_scale_min, task.train_data.parser.aug_scale_max = 4 / 5, 5 / 4
    _train(config, 67_500, batch_size)
    _learn(
        config,
        boundaries=[60_000, 65_000],
        values=[0.1, 0.01, 0.001],
        warmup_steps=500,
        warmup_from=2 / 300,
    )
    return config


def _train(config: ExperimentConfig, steps: int, batch_size: int) -> None:
    """Trains for a number of steps, with a look at all of the validation images every ten epochs."""
    config.task.init_checkpoint_modules = "backbone"
    config.task.validation_data.global_batch_size = EVAL_BATCH_SIZE
    config.task.validation_data.drop_remainder = True
    trainer = config.trainer
    epoch = COCO_TRAIN // batch_size
    trainer.train_steps = steps
    trainer.steps_per_loop = trainer.summary_interval = epoch
    trainer.checkpoint_interval = trainer.validation_interval = 10 * epoch
    trainer.validation_steps = COCO_VAL // EVAL_BATCH_SIZE


def _learn(
    config: ExperimentConfig,
    boundaries: list[int],
    values: list[float],
    warmup_steps: int,
    warmup_from: float,
) -> None:
    """Sets the learning rate: a value holds up to its boundary, and with it; the first after the warm-up."""
    optimizer = config.trainer.optimizer_config
    optimizer.optimizer.type = "sgd"
    optimizer.optimizer.sgd.momentum = 0.9
    optimizer.learning_rate.type = "stepwise"
    optimizer.learning_rate.stepwise.boundaries = boundaries
    optimizer.learning_rate.stepwise.values = values
    optimizer.warmup.type = "linear"
    optimizer.warmup.linear.warmup_steps = warmup_steps
    optimizer.warmup.linear.warmup_learning_rate = warmup_from


exp_factory.register_config_factory("maskrcnn_lambda_resnet_coco")(maskrcnn_lambda_resnet_coco)
for _model_id in TABLE_14:
    exp_factory.register_config_factory(f"maskrcnn_lambda_resnet_coco:{_model_id}")(
        functools.partial(maskrcnn_lambda_resnet_coco, _model_id)
    )
exp_factory.register_config_factory("maskrcnn_halo_resnet_coco")(maskrcnn_halo_resnet_coco)
for _row in TABLE_A4:
    exp_factory.register_config_factory(f"maskrcnn_halo_resnet_coco:{_row}")(
        functools.partial(maskrcnn_halo_resnet_coco, _row)
    )
