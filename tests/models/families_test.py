# SPDX-License-Identifier: Apache-2.0
"""Properties of every family: strides of features, channels, bfloat16, saving, stable names."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from helpers import images
from small_models import output_types, small_model

import lambdanet
from lambdanet.backend import compat
from lambdanet.errors import InputError

FAMILIES = (
    "resnet_50_augmented",
    "resnet_rs_50_no_se",
    "lambda_resnet_tiny",
    "mobilenet_v2_lambda",
    "halonet_h0",
    "halo_resnet_50",
    "eca_halonext26ts",
    "lamhalobotnet50ts_256",
)


@pytest.mark.parametrize("name", FAMILIES)
def test_features_of_images_of_any_size_and_channels(freed, name):
    """Strides 2 to 32, rounded up; the order of the batch makes no difference."""
    model = small_model(name, in_channels=2, features_only=True)
    assert set(model.output_shape) == {"1", "2", "3", "4", "5"}
    for height, width in ((64, 96), (50, 70)):
        x = images(2, height, width, 2)
        for level, feature in model(tf.concat([x, x[::-1]], axis=0)).items():
            stride = 2 ** int(level)
            assert feature.shape[1:3] == (-(-height // stride), -(-width // stride))
            scale = np.abs(feature).max()
            np.testing.assert_allclose(feature[2:], feature[1::-1], atol=1e-4 * scale)


@pytest.mark.parametrize("name", FAMILIES)
def test_save_and_load_under_mixed_precision(name, tmp_path):
    """Logits stay in float32; the loaded model, whose layers are traced, has the same outputs everywhere."""
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = small_model(name, 32)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    x = images(2, 32, 32, 3)
    logits = model(x)
    assert logits.dtype == tf.float32 and np.all(np.isfinite(logits))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), logits, atol=1e-6)
    assert loaded.get_config() == model.get_config()
    assert output_types(loaded) == output_types(model)


def test_saved_model_of_a_halonet(tmp_path):
    """A SavedModel takes images of other sizes than those it was traced with."""
    model = small_model("halo_resnet_50", stages=("", "", "", "H"))
    model(images(1, 32, 32, 3))
    model.save(tmp_path / "model")
    x = images(2, 40, 56, 3)
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "model")(x), model(x), atol=1e-5)


def conv_norm(name):
    return [f"{name}_conv/kernel", *(f"{name}_norm/{w}" for w in NORM)]


NORM = ("gamma", "beta", "moving_mean", "moving_variance")
LAMBDA = (
    *(f"{part}/kernel" for part in ("queries", "keys", "values")),
    *(f"{part}_norm/{w}" for part in ("queries", "values") for w in NORM),
    "position/table",
)
HALO = ("queries/kernel", "keys/kernel", "values/kernel", "height_table", "width_table")
GATE = tuple(f"se/{part}/{w}" for part in ("reduce", "expand") for w in ("kernel", "bias"))


def bottleneck(name, spatial, *, first=False, gate=False):
    names = [f"{name}_spatial_norm/{w}" for w in NORM]
    names += [*conv_norm(f"{name}_reduce"), *conv_norm(f"{name}_expand")]
    names += [f"{name}_spatial{w}" for w in spatial]
    names += conv_norm(f"{name}_shortcut") if first else []
    return names + ([f"{name}_{w}" for w in GATE] if gate else [])


def golden_tiny():
    attention, convolution = [f"/{w}" for w in LAMBDA], ["_conv/kernel"]
    names = [name for i in range(1, 5) for name in conv_norm(f"stem{i}")]
    names += bottleneck("c2_block1", convolution, first=True, gate=True)
    names += bottleneck("c3_block1", convolution, first=True, gate=True)
    names += bottleneck("c3_block2", attention, gate=True)
    names += bottleneck("c4_block1", attention, first=True) + bottleneck("c4_block2", attention)
    return names + bottleneck("c5_block1", attention, first=True)


def golden_halonet_h0():
    names = conv_norm("stem")
    for level, depth in zip((2, 3, 4, 5), (3, 3, 7, 3), strict=True):
        for index in range(1, depth + 1):
            names += bottleneck(f"c{level}_block{index}", [f"/{w}" for w in HALO], first=index == 1)
    return names


def golden_mobilenet_v2_lambda():
    names = [*conv_norm("stem"), *conv_norm("final")]
    for index in range(1, 18):
        block = f"block{index}"
        names += conv_norm(f"{block}_project")
        if index in (10, 16):
            names += conv_norm(f"{block}_reduce") + [f"{block}_lambda/{w}" for w in LAMBDA]
        else:
            names += [f"{block}_depthwise/depthwise_kernel"]
            names += [f"{block}_depthwise_norm/{w}" for w in NORM]
            names += conv_norm(f"{block}_expand") if index > 1 else []
    return names


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("lambda_resnet_tiny", golden_tiny),
        ("halonet_h0", golden_halonet_h0),
        ("mobilenet_v2_lambda", golden_mobilenet_v2_lambda),
    ],
)
def test_names_of_variables(name, golden):
    """Converters and older weights rely on these names; they do not change."""
    with compat.without_values():
        model = lambdanet.create_model(name)
    expected = [f"{weight}:0" for weight in (*golden(), "logits/kernel", "logits/bias")]
    assert sorted(weight.name for weight in model.weights) == sorted(expected)


def test_efficientnet():
    """For comparison only: features and any channels, but no arguments of layers."""
    with compat.without_values():
        model = lambdanet.create_model(
            "efficientnet_b0", in_channels=2, input_size=(64, 96), features_only=True
        )
    shapes = {level: shape[1:3] for level, shape in model.output_shape.items()}
    assert shapes == {"2": (16, 24), "3": (8, 12), "4": (4, 6), "5": (2, 3)}
    for arguments in (
        {"kernel_regularizer": keras.regularizers.L2(1e-4)},
        {"batch_norm": {"momentum": 0.99}},
    ):
        with pytest.raises(InputError, match="efficientnet_b0 is there for comparison"):
            lambdanet.create_model("efficientnet_b0", **arguments)
