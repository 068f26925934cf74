# SPDX-License-Identifier: Apache-2.0
"""Experiments: their configurations, compared with Model Garden's and the papers' numbers."""

import dataclasses
import functools

import pytest

from lambdanet.detection import experiments
from lambdanet.detection.configs import resolve
from lambdanet.detection.model_garden import backbone_configs, exp_factory, optimization, train_utils
from lambdanet.detection.modeling import tasks
from lambdanet.errors import InputError

PAPER, HALO = "maskrcnn_lambda_resnet_coco", "maskrcnn_halo_resnet_coco"
STOCK = "maskrcnn_resnetfpn_coco"
# Experiment -> the experiment of Model Garden that it is derived from, and its model.
DERIVED = {
    "lambda_resnet/image_classification": ("image_classification", "lambda_resnet_50"),
    "lambda_resnet/resnet_imagenet": ("resnet_imagenet", "lambda_resnet_50"),
    "lambda_resnet/resnet_rs_imagenet": ("resnet_rs_imagenet", "lambda_resnet_50"),
    "lambda_resnet/fasterrcnn_resnetfpn_coco": ("fasterrcnn_resnetfpn_coco", "lambda_resnet_50"),
    "lambda_resnet/maskrcnn_resnetfpn_coco": (STOCK, "lambda_resnet_50"),
    "lambda_resnet/cascadercnn_resnetfpn_coco": ("cascadercnn_spinenet_coco", "lambda_resnet_50"),
    "lambda_resnet/retinanet": ("retinanet", "lambda_resnet_50"),
    "lambda_resnet/retinanet_resnetfpn_coco": ("retinanet_resnetfpn_coco", "lambda_resnet_50"),
    "mobilenet_v2_lambda/mobilenet_imagenet": ("mobilenet_imagenet", "mobilenet_v2_lambda"),
    "mobilenet_v2_lambda/maskrcnn_mobilenet_coco": ("maskrcnn_mobilenet_coco", "mobilenet_v2_lambda"),
}
# Settings of both papers' experiments, as a TPU evaluates full batches: 5000 = 125 * 40.
EVALUATION = {
    "task.validation_data.global_batch_size": 40,
    "task.validation_data.drop_remainder": True,
    "trainer.validation_steps": 125,
}


# Cached, because Model Garden takes 40 ms for each.
config_of = functools.cache(exp_factory.get_exp_config)


def flat(config, prefix=""):
    for key, value in config.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]


def difference(experiment, stock):
    """Returns the values in which an experiment differs from another one, backbone excluded."""
    ours, theirs = (
        {k: v for k, v in flat(config_of(name).as_dict()) if ".backbone." not in k}
        for name in (experiment, stock)
    )
    return {key: ours.get(key) for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}


def model_of(experiment):
    backbone = config_of(experiment).task.model.backbone
    return {key: value for key, value in backbone.get().as_dict().items() if value is not None}


def rates(experiment, steps):
    optimizer = config_of(experiment).trainer.optimizer_config
    schedule = optimization.OptimizerFactory(optimizer).build_learning_rate()
    return [float(schedule(step)) for step in steps]


def test_every_stock_experiment_with_a_resnet_is_derived_from():
    stock = [
        name
        for name in experiments.list_experiments()
        if not name.startswith(("lambda_resnet/", "mobilenet_v2"))
    ]
    with_resnet = set()
    for name in stock:
        task = config_of(name).task
        if type(task) in tasks.TASK_CLASSES and task.model.backbone.type in ("resnet", "mobilenet"):
            with_resnet.add(name)
    sources = {source for source, _ in DERIVED.values()}
    assert sources == with_resnet | {"cascadercnn_spinenet_coco"}
    ours = [name for name in experiments.list_experiments() if "/" in name]
    assert sorted(ours) == sorted(DERIVED)


@pytest.mark.parametrize("experiment", DERIVED)
def test_derived_experiment_differs_in_its_backbone_alone(experiment):
    stock, model_id = DERIVED[experiment]
    expected = {}
    if "gs://" in str(config_of(stock).task.init_checkpoint):
        expected["task.init_checkpoint"] = None
    if "cascade" in experiment:
        expected |= {
            "task.model.decoder.type": "fpn",
            "task.model.decoder.fpn.fusion_type": "sum",
            "task.model.decoder.fpn.num_filters": 256,
            "task.model.decoder.fpn.use_keras_layer": False,
            "task.model.decoder.fpn.use_separable_conv": False,
        }
    assert difference(experiment, stock) == expected
    assert model_of(experiment) == {
        "model_id": model_id,
        "stochastic_depth_drop_rate": 0.0,
        "bn_trainable": True,
    }
    side = 256 if "coco" in experiment or "retinanet" in experiment else 240  # classifiers accept any size
    resolve.resolve(experiment, params_override=f"task.model.input_size=[{side},{side},3]")


def test_experiments_read_nothing_from_buckets():
    for name in experiments.list_experiments():
        if name.startswith((*DERIVED, PAPER, HALO)):
            values = dict(flat(config_of(name).as_dict())).values()
            assert not [value for value in values if "gs://" in str(value)]


def test_lambda_papers_experiment():
    """F.3: 1024x1024, scratch, 130k steps of 256, jitter [0.1, 2.0], warmup of 1000 steps to 0.32, / 10 at
    90, 95 and 97.5 %, weight decay 4e-5, synchronized batch normalization. All else is Model Garden's."""
    steps, epoch = 130_000, 118_287 // 256
    assert difference(PAPER, STOCK) == {
        **EVALUATION,
        "task.init_checkpoint": None,
        "task.train_data.global_batch_size": 256,
        "task.train_data.parser.aug_scale_min": 0.1,
        "task.train_data.parser.aug_scale_max": 2.0,
        "trainer.train_steps": steps,
        "trainer.steps_per_loop": epoch,
        "trainer.summary_interval": epoch,
        "trainer.checkpoint_interval": 10 * epoch,
        "trainer.validation_interval": 10 * epoch,
        "trainer.optimizer_config.learning_rate.stepwise.boundaries": [117_000, 123_500, 126_750],
        "trainer.optimizer_config.learning_rate.stepwise.values": [0.32, 0.032, 0.0032, 0.00032],
        "trainer.optimizer_config.warmup.linear.warmup_learning_rate": 0.0,
        "trainer.optimizer_config.warmup.linear.warmup_steps": 1000,
    }
    config = config_of(PAPER)
    assert config.task.model.input_size == [1024, 1024, 3]
    assert config.task.model.norm_activation.use_sync_bn
    assert config.task.losses.l2_weight_decay == 4e-5
    assert config.trainer.optimizer_config.optimizer.get().momentum == 0.9


def test_lambda_papers_learning_rate():
    """A value holds up to and including its boundary."""
    drops = [round(fraction * 130_000) for fraction in (0.9, 0.95, 0.975)]
    got = rates(PAPER, [0, 500, 1000, *(step + after for step in drops for after in (0, 1)), 129_999])
    assert got == pytest.approx([0, 0.16, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032, 0.00032, 0.00032])


def test_halo_papers_experiment():
    """C.4: 1024x1024, pre-trained, 67.5k steps of 64, 0.1 from 2/300 in 500 steps, / 10 at 60k and 65k,
    jitter [4/5, 5/4], weight decay 4e-5. All else is Model Garden's."""
    epoch = 118_287 // 64
    assert difference(HALO, STOCK) == {
        **EVALUATION,
        "task.init_checkpoint": None,
        "trainer.train_steps": 67_500,
        "trainer.steps_per_loop": epoch,
        "trainer.summary_interval": epoch,
        "trainer.checkpoint_interval": 10 * epoch,
        "trainer.validation_interval": 10 * epoch,
        "trainer.optimizer_config.learning_rate.stepwise.boundaries": [60_000, 65_000],
        "trainer.optimizer_config.learning_rate.stepwise.values": [0.1, 0.01, 0.001],
        "trainer.optimizer_config.warmup.linear.warmup_learning_rate": 2 / 300,
    }
    config = config_of(HALO)
    assert config.task.train_data.global_batch_size == 64
    assert config.task.init_checkpoint_modules == "backbone"
    parser = config.task.train_data.parser
    assert (parser.aug_scale_min, parser.aug_scale_max) == (4 / 5, 5 / 4)
    assert config.trainer.optimizer_config.optimizer.get().momentum == 0.9
    got = rates(HALO, [0, 250, 500, 60_000, 60_001, 65_000, 65_001])
    assert got == pytest.approx([2 / 300, (2 / 300 + 0.1) / 2, 0.1, 0.1, 0.01, 0.01, 0.001])


def test_rows_of_tables_14_and_a4():
    rows = {
        name.partition(":")[2]: model_of(name)
        for name in experiments.list_experiments()
        if name.startswith(PAPER + ":")
    }
    assert [row["model_id"] for row in rows.values()] == [
        f"{kind}_{depth}{suffix}"
        for depth in (101, 152)
        for kind, suffix in (("resnet_rs", "_no_se"), ("resnet_rs", ""), ("lambda_resnet", ""))
    ]
    halo = {
        name.partition(":")[2]: model_of(name)
        for name in experiments.list_experiments()
        if name.startswith(HALO + ":")
    }
    assert {name: (row["model_id"], row.get("block_size")) for name, row in halo.items()} == {
        "resnet_50_se_8": ("resnet_50_se_8", None),
        "halo_resnet_50": ("halo_resnet_50", None),
        "halo_resnet_50_block_32": ("halo_resnet_50", 32),
        "resnet_101_se_8": ("resnet_101_se_8", None),
        "halo_resnet_101": ("halo_resnet_101", None),
    }
    for name in (PAPER, HALO):
        for row in [n for n in experiments.list_experiments() if n.startswith(f"{name}:")]:
            assert difference(row, name) == {}


def test_configuration_survives_serialization(tmp_path):
    options = {"model_id": "resnet_50_llll", "key_dim": 8}
    override = ",".join(f"task.model.backbone.lambda_resnet.{key}={value}" for key, value in options.items())
    params = resolve.resolve(PAPER, params_override=override)
    train_utils.serialize_config(params, str(tmp_path))
    restored = resolve.resolve(PAPER, [str(tmp_path / "params.yaml")])
    assert restored.as_dict() == params.as_dict()
    assert restored.task.model.backbone.lambda_resnet.key_dim == 8
    assert dataclasses.is_dataclass(restored.task.model.backbone)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.model.backbone.lambda_resnet.model=x",
            "unknown key of task.model.backbone.lambda_resnet in --params_",
        ),
        (
            "task.model.backbone.type=lambda",
            "unknown task.model.backbone.type 'lambda'; did you mean lambda_resnet",
        ),
        ("task.modle.x=1", "unknown key of task in --params_override 'modle'; did you mean model"),
        (
            "task.model.backbone.lambda_resnet.model_id=resnet_51",
            "unknown model_id .* 'resnet_51'; did you mean",
        ),
        (
            "task.model.input_size=[1000,1024,3]",
            r"input_size must be divisible by 64.* got \[1000, 1024, 3\]; 960 or 1024 would do",
        ),
        (
            "task: {model: {input_size: [48, 64, 3], max_level: 5}}",
            r"divisible by 32.* 32 or 64 would do instead of 48",
        ),
        ("task.model.input_size=[1024]", r"input_size must be \[height, width, channels\], got \[1024\]"),
        ("task: [", "--params_override must be valid YAML"),
        ("no_such_file.yaml", "--params_override cannot be read: no_such_file.yaml"),
    ],
)
def test_resolve_rejects(override, message):
    with pytest.raises(InputError, match=message):
        resolve.resolve(PAPER, params_override=override)


def test_resolve_rejects_unknown_experiments_and_files(tmp_path):
    with pytest.raises(
        InputError, match="unknown experiment 'maskrcnn_lambda'; did you mean maskrcnn_lambda_"
    ):
        resolve.resolve("maskrcnn_lambda")
    with pytest.raises(InputError, match="--config_file must be an existing file, got .*none.yaml"):
        resolve.resolve(PAPER, [str(tmp_path / "none.yaml")])


# Model Garden's experiments with a choice of image backbones.
IMAGES_2D = [
    name
    for name in list(experiments.list_experiments())
    if name not in DERIVED
    and not name.startswith(("maskrcnn_lambda", "maskrcnn_halo"))
    and isinstance(config_of(name).task.model.backbone, backbone_configs.Backbone)
]


@pytest.mark.parametrize("experiment", IMAGES_2D)
def test_stock_experiment_with_a_backbone_of_the_zoo(experiment, tmp_path):
    file = tmp_path / "mg.yaml"
    file.write_text("task: {model: {input_size: [256, 256, 3], backbone: {type: lambda_resnet}}}")
    stock = config_of(experiment)
    expected = dict(flat(stock.as_dict())) | {
        "task.model.input_size": [256, 256, 3],
        "task.init_checkpoint": None,
    }
    override = ""
    if "spinenet" in stock.task.model.backbone.type:
        with pytest.raises(InputError, match="decoder.type must be fpn or nasfpn .* got 'identity'"):
            resolve.resolve(experiment, [str(file)])
        override = "task.model.decoder.type=fpn"
    params = resolve.resolve(experiment, [str(file)], override)
    assert params.task.model.backbone.get().model_id == "lambda_resnet_50"
    found = dict(flat(params.as_dict()))
    changed = {key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
    others = ("task.model.backbone.", "task.model.decoder.", "runtime.")
    assert not [key for key in changed if not key.startswith(others)]
    assert override or not [key for key in changed if ".decoder." in key]


def test_stock_experiment_keeps_settings_of_its_backbone():
    assert config_of(STOCK).task.init_checkpoint.startswith("gs://")
    params = resolve.resolve(STOCK)
    assert params.task.as_dict() == config_of(STOCK).task.as_dict()
    own = "task.model.backbone.type=lambda_resnet,task.init_checkpoint=mine"
    assert resolve.resolve(STOCK, params_override=own).task.init_checkpoint == "mine"
    with pytest.raises(InputError, match="Found inconsistency between key `task.model.min_level "):
        resolve.resolve("retinanet_spinenet_coco", params_override="task.model.min_level=4")


def test_video_experiments_have_no_backbone_of_the_zoo():
    for override in ("task.model.backbone.type=lambda_resnet", "task.model.backbone.lambda_resnet.scope=7"):
        with pytest.raises(InputError, match="'lambda_resnet'; did you mean resnet_3d"):
            resolve.resolve("video_classification", params_override=override)
