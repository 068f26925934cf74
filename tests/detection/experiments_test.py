# SPDX-License-Identifier: Apache-2.0
"""Experiments: their configurations, compared with Model Garden's and the papers' numbers."""

import functools

import pytest
import tensorflow as tf
import tf_keras as keras
from refusals import refused

from lambdanet.detection import experiments
from lambdanet.detection.configs import resolve
from lambdanet.detection.model_garden import (
    backbone_configs,
    exp_factory,
)
from lambdanet.detection.modeling import tasks
from lambdanet.detection.run import train_step

PAPER, HALO = "maskrcnn_lambda_resnet_coco", "maskrcnn_halo_resnet_coco"
STOCK = "maskrcnn_resnetfpn_coco"
DERIVED = [name for name in experiments.list_experiments() if "/" in name]
CASCADE = "cascadercnn_spinenet_coco"  # which Model Garden has with SpineNet alone


# Cached, because Model Garden takes 40 ms for each.
config_of = functools.cache(exp_factory.get_exp_config)


def flat(config, prefix=""):
    for key, value in config.items():
        yield from (
            flat(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else [(f"{prefix}{key}", value)]
        )


def difference(experiment, stock):
    """Returns the values in which an experiment differs from another one, backbone excluded."""
    found = differing_values(config_of(experiment), config_of(stock))
    return {key: value for key, value in found.items() if ".backbone." not in key}


def differing_values(config, other):
    ours, theirs = (dict(flat(one.as_dict())) for one in (config, other))
    return {
        key: ours.get(key)
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key)
    }


def model_of(experiment):
    backbone = config_of(experiment).task.model.backbone
    return {
        key: value
        for key, value in backbone.get().as_dict().items()
        if value is not None
    }


def stock_of(experiment):
    """Returns the experiment of Model Garden from which one is derived."""
    return CASCADE if "cascade" in experiment else experiment.partition("/")[2]


def test_every_stock_experiment_with_a_resnet_is_derived_from():
    with_resnet = set()
    for name in experiments.list_experiments():
        task = config_of(name).task
        if type(task) in tasks.TASK_CLASSES and task.model.backbone.type in (
            "resnet",
            "dilated_resnet",
            "mobilenet",
        ):
            with_resnet.add(name)
    assert {stock_of(name) for name in DERIVED} == with_resnet | {CASCADE}


@pytest.mark.parametrize("experiment", DERIVED)
def test_derived_experiment_differs_in_its_backbone_alone(experiment):
    stock = stock_of(experiment)
    expected = {}
    if "gs://" in str(config_of(stock).task.init_checkpoint):
        expected["task.init_checkpoint"] = None
    if "cascade" in experiment:
        fpn = {"fusion_type": "sum", "num_filters": 256}
        fpn |= {"use_keras_layer": False, "use_separable_conv": False}
        expected |= {
            f"task.model.decoder.fpn.{key}": value for key, value in fpn.items()
        }
        expected["task.model.decoder.type"] = "fpn"
    assert difference(experiment, stock) == expected
    model, _, name = experiment.partition("/")
    is_deeplab = "deeplab" in name
    if model == "lambda_resnet":
        model += "_101" if is_deeplab else "_50"
    assert model_of(experiment) == {
        "stochastic_depth_drop_rate": 0.0,
        "bn_trainable": True,
        "model_id": model,
        "output_stride": 16 if is_deeplab else 32,
    }
    # Classifiers accept any size.
    side = 256 if "coco" in experiment or "retinanet" in experiment else 240
    resolve.resolve(
        experiment, params_override=f"task.model.input_size=[{side},{side},3]"
    )


@pytest.mark.parametrize(
    ("paper", "batch", "steps", "boundaries", "rates", "jitter"),
    [
        (PAPER, 256, 130_000, (0.9, 0.95, 0.975), (0.32, 0.1), (0.1, 2.0)),
        (HALO, 64, 67_500, (60 / 67.5, 65 / 67.5), (0.1, 0.1), (4 / 5, 5 / 4)),
    ],
)
def test_papers_experiments(paper, batch, steps, boundaries, rates, jitter):
    """F.3 and C.4 of the papers: 1024x1024, weight decay 4e-5; all else but the rates is Model Garden's."""
    config = config_of(paper)
    first, factor = rates
    stepwise = config.trainer.optimizer_config.learning_rate.stepwise
    assert stepwise.boundaries == pytest.approx([steps * part for part in boundaries])
    expected = [first * factor**power for power in range(len(boundaries) + 1)]
    assert stepwise.values == pytest.approx(expected)
    task = config.task
    assert task.train_data.global_batch_size == batch
    assert config.trainer.train_steps == steps
    parser = task.train_data.parser
    assert (parser.aug_scale_min, parser.aug_scale_max) == jitter
    assert task.model.input_size == [1024, 1024, 3]
    assert task.model.norm_activation.use_sync_bn
    assert task.losses.l2_weight_decay == 4e-5
    assert config.trainer.optimizer_config.optimizer.get().momentum == 0.9
    # A TPU evaluates full batches: all 5000 images.
    validation = task.validation_data
    assert validation.global_batch_size * config.trainer.validation_steps == 5000
    assert validation.drop_remainder
    changed = "trainer.", "task.train_data.", "task.validation_data.", "task.init_"
    assert all(key.startswith(changed) for key in difference(paper, STOCK))


@pytest.mark.parametrize(("paper", "count"), [(PAPER, 6), (HALO, 5)])
def test_rows_of_tables_14_and_a4(paper, count):
    """A row is the paper's experiment with the model, or the block, in its name."""
    names = [n for n in experiments.list_experiments() if n.startswith(f"{paper}:")]
    assert len(names) == count
    for name in names:
        assert not difference(name, paper)
        found = model_of(name)
        model, _, block = name.partition(":")[2].partition("_block_")
        assert (found["model_id"], str(found.get("block_size", ""))) == (model, block)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.model.backbone.lambda_resnet.model=x",
            "unknown key of task.model.backbone.lambda_resnet in --params_override 'model'",
        ),
        (
            "task.model.backbone.type=lambda",
            "unknown task.model.* 'lambda'; did you mean lambda_resnet",
        ),
        (
            "task.model.backbone.lambda_resnet.model_id=resnet_51",
            "unknown model_id .* 'resnet_51'; did you",
        ),
        (
            "task.model.input_size=[1000,1024,3]",
            r"by 64.* got \[1000, 1024, 3\]; 960 or 1024 would do",
        ),
        (
            "task: {model: {input_size: [48, 64, 3], max_level: 5}}",
            "by 32.* 32 or 64 would do instead of 48",
        ),
        (
            "task.model.input_size=[1024]",
            r"input_size must be \[height, width, channels\], got \[1024\]",
        ),
        ("task: [", "--params_override must be valid YAML"),
        ("no_such_file.yaml", "--params_override cannot be read: no_such_file.yaml"),
    ],
)
def test_resolve_refuses(override, message):
    with refused(message):
        resolve.resolve(PAPER, params_override=override)


def test_resolve_refuses_unknown_experiments_and_files(tmp_path):
    with refused("unknown experiment 'maskrcnn_lambda'; did you mean maskrcnn_la"):
        resolve.resolve("maskrcnn_lambda")
    with refused("--config_file must be an existing file, got .*none.yaml"):
        resolve.resolve(PAPER, [str(tmp_path / "none.yaml")])


# Model Garden's experiments with a choice of image backbones.
IMAGES_2D = [
    name
    for name in list(experiments.list_experiments())
    if not name.startswith((*DERIVED, "maskrcnn_lambda", "maskrcnn_halo"))
    and isinstance(config_of(name).task.model.backbone, backbone_configs.Backbone)
]


@pytest.mark.parametrize("experiment", IMAGES_2D)
def test_stock_experiment_with_a_backbone_of_the_zoo(experiment):
    stock = config_of(experiment)
    override = (
        "task.model.backbone.type=lambda_resnet,task.model.input_size=[256,256,3]"
    )
    if "spinenet" in stock.task.model.backbone.type:
        with refused("decoder.type must be fpn or nasfpn .* got 'identity'"):
            resolve.resolve(experiment, params_override=override)
        override += ",task.model.decoder.type=fpn"
    params = resolve.resolve(experiment, params_override=override)
    assert params.task.model.backbone.get().model_id == "lambda_resnet_50"
    changed = ["task.model.backbone.", "runtime.", "task.model.input_size"]
    changed.append("task.init_checkpoint")
    if "spinenet" in stock.task.model.backbone.type:
        changed.append("task.model.decoder.")
    assert params.task.init_checkpoint is None
    for key in differing_values(params, stock):
        assert key.startswith(tuple(changed))


def test_stock_experiment_keeps_settings_of_its_backbone():
    assert config_of(STOCK).task.init_checkpoint.startswith("gs://")
    params = resolve.resolve(STOCK)
    assert params.task.as_dict() == config_of(STOCK).task.as_dict()
    own = "task.model.backbone.type=lambda_resnet,task.init_checkpoint=mine"
    assert resolve.resolve(STOCK, params_override=own).task.init_checkpoint == "mine"
    with refused("Found inconsistency between key `task.model.min_level "):
        resolve.resolve(
            "retinanet_spinenet_coco", params_override="task.model.min_level=4"
        )


# The training step of an experiment for `tpu-check`.


def test_of_experiment_flattens_nested_labels(monkeypatch):
    def train(images, labels):
        return images + 10 * labels["boxes"]["3"] + 100 * labels["classes"]

    one = tf.ones([2])
    backbone = keras.Sequential([keras.layers.Dense(2)], name="backbone")
    model = keras.Sequential([backbone], name="detector")
    inputs = one, {"boxes": {"3": one}, "classes": one}
    step = train_step.TrainStep(tf.function(train), inputs, model)
    monkeypatch.setattr(train_step, "build_train_step", lambda *arguments: step)
    found = train_step.experiment_step("some_experiment", batch_size=2)
    assert (found.batch, len(found.inputs)) == (2, 3)
    assert set(found.model_names) == {"detector", "backbone"}
    assert found.function(one, 2 * one, 3 * one).numpy().tolist() == [321] * 2


def test_of_experiment_refuses():
    with refused("mode must be 'train' for a detection experiment, got 'infer'"):
        train_step.experiment_step(PAPER, mode="infer")
    with refused("batch_size must be a positive integer, got 0"):
        train_step.experiment_step(PAPER, batch_size=0)
