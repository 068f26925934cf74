# SPDX-License-Identifier: Apache-2.0
"""Recipes: their models and data exist, and their numbers are those of the papers."""

import itertools

import pytest
from training_runs import open_dataset

import lambdanet
from lambdanet import configs
from lambdanet.configs import fashion_mnist
from lambdanet.configs import recipe_values as v
from lambdanet.models import complexity
from lambdanet.training.data import augment, rand_augment
from lambdanet.training.run import build, optimizers
from lambdanet.training.tasks import losses

NAMES = configs.list_recipes()


@pytest.mark.parametrize(
    ("choices", "table"),
    [
        (v.AUGMENTATIONS, augment.AUGMENTATIONS),
        (v.OPTIMIZERS, optimizers.OPTIMIZERS),
        (v.POLICIES, rand_augment.POLICIES),
        (v.SCHEDULES, build.SCHEDULES),
        (v._LOSSES, filter(v.TASKS.get, v.TASKS)),
        (v._LOSSES["classification"], losses.LOSSES),
        (v.LOSSES, itertools.chain(*v._LOSSES.values())),
    ],
)
def test_every_choice_is_implemented(choices, table):
    assert {*choices} == {*table}


def test_recipes_name_models_of_the_zoo():
    models = {configs.get_recipe(name).model for name in NAMES}
    assert models <= set(lambdanet.list_models())


@pytest.mark.parametrize(
    "dataset", sorted({configs.get_recipe(name).dataset for name in NAMES})
)
def test_classes_and_channels_of_the_dataset(dataset, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
    (tmp_path / "train-00000-of-00001").touch()
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    name = next(n for n in NAMES if configs.get_recipe(n).dataset == dataset)
    opened = open_dataset(configs.get_recipe(name), tmp_path)
    assert len(opened.class_names) == opened.recipe.num_classes


@pytest.mark.slow
def test_networks_for_fashion_mnist_have_equal_parameters():
    counts = {
        name: complexity.count_parameters(build.build_model(recipe))
        for name, recipe in fashion_mnist.ROWS.items()
    }
    reference = counts["resnet_micro"]
    assert all(abs(count / reference - 1) < 0.01 for count in counts.values()), counts


# Recipe -> steps of an epoch, and the learning rate after some epochs, worked out by hand.
IMAGENET_STEPS = 1_281_167 // 4096  # 312
CORNERS = {
    "imagenet_90:resnet_50_llll": (
        IMAGENET_STEPS,
        {2.5: 0.8, 5: 1.6, 47.5: 0.8, 90: 0.0},
    ),
    "imagenet_350:lambda_resnet_152@256": (
        IMAGENET_STEPS,
        {5: 1.6, 177.5: 0.8, 350: 0.0},
    ),
    "cifar10:resnet_50": (
        390,
        {1: 0.0005, 2: 0.001, 5: 0.0025, 47.5: 0.00125, 90: 0.0},
    ),
    "fashion_mnist:resnet_micro": (
        468,
        {0.5: 0.05, 1: 0.1, 6.5: 0.05, 12: 0.0},
    ),
    "mobilenet:mobilenet_v2": (
        IMAGENET_STEPS,
        # 345 / 3 = 115
        {5: 0.1, 7.99: 0.1, 8: 0.099, 11: 0.1 * 0.99**2, 350: 0.1 * 0.99**115},
    ),
    "halonet:halonet_h7": (
        IMAGENET_STEPS,
        {5: 1.6, 177.5: 0.8 + 0.8 / 128, 350: 1.6 / 128},
    ),
    "imagenet_pseudo:lambda_resnet_152@224": (
        1_281_167 // 2048,  # the other half of each batch has pseudo-labels
        {5: 0.8, 120: 0.6, 350: 0.0},  # cos(pi / 3) = 1 / 2
    ),
    "imagenet_pseudo:lambda_resnet_152@288": (
        1_281_167 // 1024,
        {5: 0.4, 120: 0.3, 350: 0.0},
    ),
    "halonet_21k:halonet_h4_base128": (
        14_200_000 // 4096,
        {2: 2.56, 46: 1.28, 90: 0.0},
    ),
    "halonet_finetune:halonet_h4_base128_c12@512": (
        2502,
        {0.5: 0.016, 4.25: 0.008, 8: 0.0},
    ),
    "finetune:lambda_resnet26t": (10, {1: 0.01, 10.5: 0.005, 20: 0.0}),
    "rsb_a:lambda_resnet50ts@a1": (
        1_281_167 // 2048,
        {5: 5e-3, 302.5: 2.5e-3, 600: 0.0},
    ),
    "rsb_c:lambda_resnet26t": (IMAGENET_STEPS, {5: 1.6, 177.5: 0.8, 350: 0.0}),
    "folder": (10, {5: 0.025, 52.5: 0.0125, 100: 0.0}),
    "digits": (22, {1: 0.1, 20.5: 0.05, 40: 0.0}),
    "segment": (20, {5: 5e-4, 52.5: 2.5e-4, 100: 0.0}),
}


def test_every_setup_has_its_corners_checked():
    assert {name.partition(":")[0] for name in NAMES} == {
        name.partition(":")[0] for name in CORNERS
    }


@pytest.mark.parametrize("name", CORNERS)
def test_the_learning_rate_at_the_corners(name):
    steps, rates = CORNERS[name]
    schedule = build.build_schedule(configs.get_recipe(name), steps)
    for epoch, rate in rates.items():
        assert float(schedule(round(epoch * steps))) == pytest.approx(rate, abs=1e-6), (
            f"after {epoch} epochs"
        )


# Recipe -> some of its fields, as the papers give them.
NUMBERS = {
    "imagenet_90:resnet_50": dict(
        weight_decay=1e-4, randaugment_layers=0, dropout_rate=0.0
    ),
    "imagenet_90:resnet_50_se": dict(
        bn_momentum=0.9999, ema_decay=0.9999, label_smoothing=0.1
    ),
    "imagenet_350:lambda_resnet_350@288": dict(
        train_split="train[20shard:]", held_out_split="train[:20shard]", patience=20
    ),
    "imagenet_350:lambda_resnet_350@256": dict(
        train_split="train", held_out_split="", patience=0
    ),
    "imagenet_pseudo:lambda_resnet_101@192": dict(
        num_pseudo_labels=2048, epochs=350, weight_decay=4e-5, randaugment_magnitude=15
    ),
    "imagenet_pseudo:lambda_resnet_152@288": dict(
        num_pseudo_labels=3072, stochastic_depth_rate=0.1
    ),
    "halonet_21k:halonet_h4_base128_patch": dict(
        weight_decay=8e-5, optimizer_options={"nesterov": True}, input_size=256
    ),
    "halonet_finetune:halonet_h4_base128@384": dict(
        zero_head=True, label_smoothing=0.1, ema_decay=0.0, num_classes=1000
    ),
    "imagenet_350:lambda_resnet_101@192": dict(
        weight_decay=4e-5,
        randaugment_layers=2,
        randaugment_magnitude=15,
        dropout_rate=0.2,
    ),
    "imagenet_350:resnet_rs_420_no_se@320": dict(
        stochastic_depth_rate=0.2, randaugment_magnitude=15, dropout_rate=0.3
    ),
    "rsb_a:lambda_resnet26t@a2": dict(
        weight_decay=0.02, mixup_alpha=0.1, cutmix_alpha=1.0, stochastic_depth_rate=0.05
    ),
    "rsb_a:halonet50ts@a2": dict(
        repeated_augmentation=3,
        randaugment_std=0.5,
        randaugment_layers=2,
        input_size=256,
    ),
    "rsb_a:haloregnetz_b@a3": dict(
        epochs=100, learning_rate=8e-3, input_size=224, training_size=160
    )
    | dict(
        randaugment_magnitude=6,
        label_smoothing=0,
        repeated_augmentation=1,
        stochastic_depth_rate=0,
    ),
    # Its tables are for one size.
    "rsb_a:botnet26t_256@a3": dict(input_size=160, training_size=0),
    "rsb_a:halonet26t@a1": dict(
        label_smoothing=0.1, mixup_alpha=0.2, weight_decay=0.01
    ),
    "rsb_c:botnet26t_256": dict(
        optimizer_options={"nesterov": True}, input_size=256, crop_fraction=0.95
    ),
    "mobilenet:mobilenet_v2_lambda": dict(
        weight_decay=1e-5, dropout_rate=0.2, momentum=0.9
    ),
    "halonet:halonet_h4": dict(
        weight_decay=2e-5, randaugment_magnitude=17, input_size=384
    ),
    "cifar10:resnet_50_llll": dict(
        global_batch_size=128, optimizer="adam", momentum=0.9
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_papers(name):
    recipe = configs.get_recipe(name)
    assert {field: getattr(recipe, field) for field in NUMBERS[name]} == NUMBERS[name]
