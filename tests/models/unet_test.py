# SPDX-License-Identifier: Apache-2.0
"""U-Nets take any operation at any level and any size of input, and equal a plain loop over their levels."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_close,
    assert_near,
    images,
    randomize_normalizations,
    reloaded,
)
from refusals import refused

import lambdanet
from lambdanet import create_unet
from lambdanet.backend import compat
from lambdanet.models import complexity, unet, zoo
from lambdanet.models.spatial_ops import (
    Convolution,
    LambdaOperation,
    LayerOperation,
)

OPERATIONS = {
    "convolutions": Convolution(),
    "lambda layers": LambdaOperation(options={"scope": 3}),
    "whole maps": LambdaOperation(options={"scope": None}),
    "halo attention": LayerOperation(
        lambdanet.HaloAttention, {"num_heads": 2, "block_size": 4}, pool_size=0
    ),
    "linear attention": LayerOperation(lambdanet.LinearAttention, {"num_heads": 2}),
}


def small(down=("C", "L", "L"), up=("C", "L"), strides=(2, 2), lambdas=None):
    """A U-Net of three levels; L is a lambda layer of scope 3."""
    operations = {"C": Convolution(), "L": lambdas or OPERATIONS["lambda layers"]}
    return unet.UNet((8, 16, 24), down, up, operations, strides, input_size=16)


STACKS = unet.UNet(
    (32, 32, 64),
    ("C", "L", "L"),
    ("C", "C"),
    unet.MODELS["lambda_unet_2_5d"].operations,
    (1, 2, 2),
)
NETWORKS = {
    "maps": (small(), [(16, 12), (13, 7), (1, 2)]),
    "volumes": (small(strides=(2, 2, 2)), [(8, 8, 4), (3, 5, 9), (1, 1, 1)]),
    "stacks": (STACKS, [(2, 8, 4), (3, 5, 9)]),
    "scopes per axis": (
        small(strides=(1, 2, 2), lambdas=LambdaOperation(options={"scope": (1, 3, 5)})),
        [(4, 8, 8), (3, 7, 6)],
    ),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_any_size_gives_logits_of_every_position(case):
    network, sizes = NETWORKS[case]
    model = create_unet(network, num_classes=3, in_channels=2)
    randomize_normalizations(model)
    for size in sizes:
        x = images(2, *size, 2)
        y = model(x)
        assert y.shape == (2, *size, 3)
        if min(size) > 1:
            fixed = create_unet(network, 3, 2, size)
            fixed.set_weights(model.get_weights())
            assert_close(fixed(x), y, 1e-4)


@pytest.mark.parametrize(
    ("operation", "size"),
    [
        *((operation, (12, 10)) for operation in OPERATIONS),
        ("lambda layers", (4, 8, 6)),
    ],
)
def test_gradients_reach_every_operation_at_every_level(operation, size):
    strides = (2,) * len(size)
    network = small("LLL", "LL", strides, OPERATIONS[operation])
    model = create_unet(network, 2, 3, size)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(model(images(2, *size, 3), training=True)))
    gradients = tape.gradient(loss, model.trainable_weights)
    without = {
        weight.path.rpartition("/")[2]
        for weight, gradient in zip(model.trainable_weights, gradients, strict=True)
        if not 0 < np.abs(gradient).max() < np.inf
    }
    # Of biases before a normalization it is zero, but for rounding.
    assert without <= {"bias"}


def naive_maximum(x):
    """The maximum over 2x2, of what there is of them."""
    b, height, width, c = x.shape
    padded = np.full([b, -(-height // 2) * 2, -(-width // 2) * 2, c], -np.inf)
    padded[:, :height, :width] = x
    return padded.reshape([b, len(padded[0]) // 2, 2, -1, 2, c]).max(axis=(2, 4))


def test_logits_equal_those_of_a_plain_loop():
    """Two levels of 1x1 convolutions in float64: pool, expand, crop, join."""
    network = unet.UNet((4, 6), ("C", "C"), ("C",), {"C": Convolution(0, 1)})
    model = create_unet(network, 2, 3)
    randomize_normalizations(model)
    weights = {w.path: np.array(w, np.float64) for w in model.weights}

    def operate(x, name):
        y = x @ weights[f"{name}_spatial_conv/kernel"][0, 0]
        gamma, beta, mean, variance = (
            weights[f"{name}_spatial_norm/{n}"]
            for n in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return np.maximum((y - mean) / np.sqrt(variance + 1e-5) * gamma + beta, 0)

    x = np.asarray(images(2, 5, 7, 3), np.float64)
    fine = operate(x, "down0_1")
    coarse = operate(naive_maximum(fine), "down1_1")
    kernel = weights["up0_expand/kernel"]  # [2, 2, filters, channels]
    b, height, width, _ = coarse.shape
    wide = np.einsum("bhwc,ijfc->bhiwjf", coarse, kernel)
    wide = wide.reshape(b, 2 * height, 2 * width, -1) + weights["up0_expand/bias"]
    joined = np.concatenate([fine, wide[:, :5, :7]], axis=-1)
    last = operate(joined, "up0_1")
    expected = last @ weights["logits/kernel"] + weights["logits/bias"]
    assert_near(model(x.astype("float32")), expected, 1e-5)


def test_deep_supervision_adds_logits_of_each_level_on_the_way_up(monkeypatch):
    """To those of a network of the zoo."""
    model = create_unet(small(), 3, 2, deep_supervision=True)
    monkeypatch.setitem(zoo.MODELS, "unet_2d", small())
    plain = lambdanet.create_model("unet_2d", 3, in_channels=2)
    assert lambdanet.create_model("unet_2d").output_shape[-1] == 1
    weights = {weight.path: weight for weight in model.weights}
    for weight in plain.weights:
        weight.assign(weights[weight.path])
    x = images(1, 13, 9, 2)
    y = model(x)
    assert y.keys() == {"0", "1"} and y["1"].shape == (1, 7, 5, 3)
    assert_close(y["0"], plain(x), 1e-4)


@pytest.mark.slow
def test_unets_are_saved_folded_and_exported(tmp_path):
    network, sizes = NETWORKS["maps"]
    model = create_unet(network, 2, 2)
    randomize_normalizations(model)
    loaded = reloaded(model, tmp_path)
    fast = lambdanet.for_inference(model)
    fast.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for size in sizes[:2]:
        x = images(2, *size, 2)
        y = model(x)
        np.testing.assert_array_equal(loaded(x), y)
        assert_near(fast(x), y, 1e-4)
        assert_near(saved.serve(x), y, 1e-4)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("unet_2d", 31_037_122),
        ("lambda_unet_2d", 13_844_546),
        ("unet_3d", 5_602_018),
        ("lambda_unet_3d", 2_324_802),
        ("lambda_unet_2_5d", 13_846_210),
    ],
)
def test_rows_of_the_table_have_the_published_sizes(name, params):
    assert lambdanet.list_models(task="segmentation") == [*unet.MODELS]
    with compat.without_values():
        model = create_unet(name, 2, 2)
    assert complexity.count_parameters(model) == params
    # The row has one class less, and a kernel for one channel more.
    (*size, _, width) = model.get_layer("down0_1_spatial_conv").kernel.shape
    info = lambdanet.model_info(name)
    assert info.params == params - (width + 1) + np.prod(size) * width
    assert info.stages[0] == (0, 1, width)


def test_options_reach_the_layers():
    model = create_unet(
        "lambda_unet_3d", scope=(1, 3, 5), kernel_regularizer="l2", key_dim=8
    )
    layer = model.get_layer("down2_1_spatial")
    assert layer.position.table.shape == (1, 3, 5, 8, 4)
    kernels = [w for w in model.trainable_weights if w.path.endswith("kernel")]
    assert len(model.losses) == len(kernels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "lambda_unet"}, "unknown U-Net 'lambda_unet'; did you mean"),
        ({"scop": 3}, "unknown option of lambda_unet_2_5d 'scop'; did you mean scope"),
        ({"num_classes": 0}, "num_classes must be a positive integer, got 0"),
        ({"input_size": (8, 8)}, "input_size must be one value, or one per spatial"),
        ({"input_size": (1, 8, 8)}, "the number of slices must be at least 2 for"),
        ({"deep_supervision": 1}, "deep_supervision must be True or False, got 1"),
    ],
)
def test_other_arguments_are_refused_on_one_line(arguments, message):
    with refused(f"^{message}"):
        create_unet(**{"network": "lambda_unet_2_5d", **arguments})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"up": ("C",)}, r"filters, down and up must be .*got \(3, 3, 1\)"),
        ({"down": ("C", "X", "C")}, "unknown operation 'X'; accepted: C"),
        ({"strides": (2,)}, r"strides must be of two or three axes, got \(2,\)"),
    ],
)
def test_other_rows_are_refused_on_one_line(row, message):
    plain = {"filters": (4, 6, 8), "down": ("C",) * 3, "up": ("C",) * 2}
    with refused(f"^{message}"):
        unet.UNet(**{**plain, **row})
