# SPDX-License-Identifier: Apache-2.0
"""Sizes of the built models, against those printed in the papers."""

import csv
import dataclasses
import itertools

import keras
import model_sizes
import numpy as np
import pytest
import tensorflow as tf
from helpers import randomize_normalizations
from small_models import few_blocks, small_model

import lambdanet
from lambdanet.backend import compat
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.models import complexity, micro, names, timm_networks, zoo
from lambdanet.models.resnet import rs_stem
from lambdanet.models.spatial_ops import Convolution

OTHER_LIBRARY = "efficientnet"
QUICK = ("resnet_50_linear_attention", "lambda_resnet_50", "halonet_h0")
# A network of each family and operation; `make weekly` builds all.
DAILY = (
    *QUICK,
    "resnet_50_augmented",
    "resnet_50_local_attention",
    "resnet_50_axial_attention",
    "resnet_50_global_attention",
    "resnet_rs_50",
    "mobilenet_v2_lambda",
    "lambda_resnet26rpt_256",
    "lamhalobotnet50ts_256",
    "eca_halonext26ts",
    "haloregnetz_b",
    "lambda_unet_2d",
)


def weekly_beside_daily(models):
    found = []
    for name in models:
        mark = pytest.mark.slow if name in DAILY else pytest.mark.weekly
        found.append(pytest.param(name, marks=[] if name in QUICK else [mark]))
    return found


def parameters_by_hand(row, num_classes=1000):
    def conv_norm(size, inputs, outputs):
        return size * size * inputs * outputs + 2 * outputs

    channels = row.stem.filters
    if row.stem.build is rs_stem:
        half, full = channels // 2, channels
        widths = itertools.pairwise((3, half, half, full, full))
        total = sum(conv_norm(3, *width) for width in widths)
    else:
        total = conv_norm(7, 3, channels)
    outputs = [4 * d for d in row.filters]
    if row in micro.MODELS.values():
        outputs = row.output_filters
    for letters, d, e, se_ratio in zip(
        row.stages, row.filters, outputs, row.se_ratios, strict=True
    ):
        for index, letter in enumerate(letters):
            total += conv_norm(1, channels, d) + conv_norm(1, d, e) + 2 * d
            total += operation_by_hand(row.blocks[letter].operation, d)
            if index == 0:
                total += conv_norm(1, channels, e)
            hidden = int(e * se_ratio)
            total += (e * hidden + hidden + hidden * e + e) if se_ratio else 0
            channels = e
    return total + channels * num_classes + num_classes


def operation_by_hand(operation, d):
    if isinstance(operation, Convolution):
        return 9 * d * d
    if operation.layer in (LocalAttention, HaloAttention):
        # W_q, W_k, W_v, and a table for each axis
        offsets = 7 if operation.layer is LocalAttention else 2 * (4 + 2 * 3) - 1
        return 3 * d * d + 2 * offsets * (d // 4 // 2)
    h, k, v = 4, 16, d // 4
    r = operation.options.get("scope", 23)
    total = d * (h * k + v) + 2 * (h * k + v)  # W_q, W_v, BN of both
    if operation.options.get("content", True):
        total += d * k
    if operation.options.get("position", "relative") is not None:
        total += r * r * k
    return total


def test_table_has_every_model():
    assert list(names.rows()) == list(zoo.MODELS)


@pytest.mark.parametrize("name", weekly_beside_daily(names.rows()))
def test_layers_of_a_model_have_the_sizes_of_its_row(name):
    """The columns of the table are those of all layers of the whole network."""
    rows = csv.DictReader(names.FILE.read_text().splitlines())
    (row,) = (row for row in rows if row["model"] == name)
    assert row == model_sizes.row(name), "python tests/model_sizes.py writes the table"


def test_parameters_of_every_model_equal_those_by_hand():
    """But for baselines of attention, HaloNets, MobileNets and those of other libraries."""
    others = {"mobilenet_v2", "mobilenet_v2_lambda", *timm_networks.MODELS}
    checked = 0
    for name in names.list_models():
        row = zoo.MODELS[name]
        is_other = name in others or name.startswith(("halo", OTHER_LIBRARY))
        is_baseline = name.endswith(("attention", "augmented"))
        if name not in micro.MODELS and (is_other or is_baseline):
            continue
        assert lambdanet.model_info(name).params == parameters_by_hand(row), name
        checked += 1
    assert checked == 47


def models_of_different_layers():
    """The names of the models without those that differ from another only in depth and size of images."""
    found = {}
    for name in names.list_models():
        if not name.startswith(OTHER_LIBRARY):
            layers = dataclasses.replace(
                few_blocks(zoo.MODELS[name]), source="", input_size=0
            )
            found.setdefault(repr(layers), name)
    return list(found.values())


@pytest.mark.parametrize("name", weekly_beside_daily(models_of_different_layers()))
def test_gradient_step_and_copy(name):
    """Gradients reach every weight; the configuration, as files hold it, and the weights are the model."""
    # A fixed seed: with all scales at one, some initial weights overflow.
    keras.utils.set_random_seed(0)
    model = small_model(name)
    for weight in model.trainable_weights:
        if "gamma" in weight.name:  # zero gammas hide the blocks behind them
            weight.assign(tf.ones_like(weight))
    images = tf.random.stateless_normal([2, 64, 48, 3], seed=[0, 0])
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits([1, 2], logits)
        )
    assert logits.shape == [2, 3]
    gradients = zip(
        model.trainable_weights,
        tape.gradient(loss, model.trainable_weights),
        strict=True,
    )
    assert [
        weight.path
        for weight, gradient in gradients
        if not 0 < np.abs(gradient).max() < np.inf
    ] == []
    copy = keras.models.model_from_json(model.to_json())
    randomize_normalizations(model)
    copy.set_weights(model.get_weights())
    outputs = model(images)
    assert np.all(np.isfinite(outputs))
    np.testing.assert_array_equal(copy(images), outputs)


def test_info_of_another_size_counts_the_built_model():
    info = lambdanet.model_info("mobilenet_v2_lambda", input_size=64)
    row = model_sizes.row("mobilenet_v2_lambda", input_size=64)
    assert (str(info.params), str(info.flops)) == (row["parameters"], row["flops"])
    with compat.without_values():
        features = lambdanet.create_model(
            info.name, features_only=True, out_levels=(1, 2, 3, 4, 5), input_size=64
        )
        embedding = lambdanet.create_model(info.name, num_classes=0)
    for level, stride, channels in info.stages:
        side = 64 // stride
        assert features.output[str(level)].shape == (None, side, side, channels)
    assert embedding.output_shape == (None, info.embedding_size)


@pytest.mark.parametrize(
    ("name", "overrides", "gibibytes"),
    [  # Table 4 prints 120 and 0.63
        ("resnet_50_global_attention", {}, 4 * 128 * 8 * 32_199_811 / 2**30),
        ("resnet_50_llll", {"share_positions": True}, 4 * 16 * 10_489_874 / 2**30),
    ],
)
def test_memory_of_table_4(name, overrides, gibibytes):
    """The sums of n^2 over blocks, and over sizes of maps, are written out for sides of 56, 28, 14 and 7."""
    with compat.without_values():
        model = lambdanet.create_model(name, input_size=224, **overrides)
    assert complexity.count_pair_memory(model) / 2**30 == pytest.approx(
        gibibytes, rel=2e-4
    )


@pytest.mark.parametrize(
    ("name", "heads", "layers", "mebibytes"),
    [  # printed as 38.4 MB and 0.625 GB
        ("LambdaLayer", 4, 8 / 2, 39.0625),
        ("GlobalAttention", 8, 8 / 2 / 4, 625),
    ],
)
def test_memory_of_appendix_e2(name, heads, layers, mebibytes):
    """Eight layers on 20x20 in half precision; attention has maps of 32 images instead of 128."""
    inputs = keras.Input([20, 20, 256])
    outputs = getattr(lambdanet, name)(256, heads)(inputs)
    memory = complexity.count_pair_memory(keras.Model(inputs, outputs))
    assert layers * memory == mebibytes * 2**20


@pytest.mark.parametrize(
    ("depth", "spacing", "count"),
    [
        (50, 3, 1),
        (101, 6, 3),
        (152, 5, 6),
        (200, 5, 6),
        (270, 8, 6),
        (350, 10, 6),
        (420, 10, 8),
    ],
)
def test_placement_of_table_19(depth, spacing, count):
    """Lambda layers are every block of c5, and in c4 those with the spacing of the table."""
    c2, c3, c4, c5 = zoo.MODELS[f"lambda_resnet_{depth}"].stages
    placed = [i for i, letter in enumerate(c4, start=1) if letter == "L"]
    assert placed == [spacing * (i + 1) for i in range(count)]
    assert set(c2 + c3) == {"C"} and set(c5) == {"L"}
