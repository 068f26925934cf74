# SPDX-License-Identifier: Apache-2.0
"""Properties of every family, and what HaloNets and MobileNets are made of."""

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_near, images, reloaded
from small_models import small_model

import lambdanet
from lambdanet.backend import compat
from lambdanet.models import halonet

FAMILIES = (
    "resnet_50_augmented",
    pytest.param("resnet_rs_50_no_se", marks=pytest.mark.weekly),
    "lambda_resnet_tiny",
    "mobilenet_v2_lambda",
    "halonet_h0",
    pytest.param("halo_resnet_50", marks=pytest.mark.weekly),
    "eca_halonext26ts",
    "lamhalobotnet50ts_256",
)


@pytest.mark.parametrize("name", FAMILIES)
def test_features_of_images_of_any_size_and_channels(freed, name):
    """Strides 2 to 32, rounded up; the order of the batch makes no difference."""
    model = small_model(name, in_channels=2, features_only=True)
    assert set(model.output) == {"1", "2", "3", "4", "5"}
    for height, width in ((64, 96), (50, 70)):
        x = images(2, height, width, 2)
        for level, feature in model(tf.concat([x, x[::-1]], axis=0)).items():
            stride = 2 ** int(level)
            assert feature.shape[1:3] == (-(-height // stride), -(-width // stride))
            assert_near(feature[2:], feature[1::-1], 1e-4)


def test_save_and_load_under_mixed_precision(tmp_path):
    """The loaded model, whose layers are traced, has the same outputs everywhere."""
    with compat.dtype_policy("mixed_bfloat16"):
        model = small_model("lamhalobotnet50ts_256", 32)
    reloaded(model, tmp_path, images(2, 32, 32, 3))


@pytest.mark.parametrize(
    "name",
    [
        "resnet_50_augmented",
        "resnet_50_axial_attention",
        "mobilenet_v2_lambda",
        "lamhalobotnet50ts_256",
        "haloregnetz_b",
    ],
)
def test_initial_values_are_drawn_by_numpy(name, monkeypatch):
    """So a seed gives the same ones on every backend, and JAX compiles no program for each shape."""

    def draw_seed(seed):
        raise AssertionError("drawn by the backend")

    monkeypatch.setattr("keras.src.backend.tensorflow.random.draw_seed", draw_seed)
    with pytest.raises(AssertionError, match="drawn by the backend"):
        keras.layers.Dense(1).build([None, 1])
    weights = small_model(name, 32).get_weights()
    # The others are zeros and ones.
    assert sum(np.std(weight) > 0 for weight in weights) > 5


NAMES = {  # of the sorted names, the start of their SHA-256
    "lambda_resnet_tiny": "67cca961fa7b79f2",
    "halonet_h0": "a02c8d264c77a33e",
    "mobilenet_v2_lambda": "22d876b2a93e996b",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_variables(name):
    """Converters and older weights rely on these names, those of tf_keras; they do not change."""
    with compat.without_values():
        model = lambdanet.create_model(name)
    names = sorted(f"{compat.variable_name(weight)}:0" for weight in model.weights)
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] == NAMES[name], (
        names
    )


@pytest.mark.parametrize("name", halonet.FAMILY)
def test_parameters_of_a_halonet_by_hand(name):
    """The block of the paper: w -> attention r_v w -> r_b w, with norms, and a projection in each stage."""
    _, block, halo, values, bottleneck, l3, final = halonet.FAMILY[name]
    total, channels = 7 * 7 * 3 * 64 + 2 * 64, 64
    for w, heads, depth in zip(
        (64, 128, 256, 512), (4, 8, 8, 8), (3, 3, l3, 3), strict=True
    ):
        outputs = bottleneck * w
        for index in range(depth):
            total += channels * w + 2 * w
            total += 2 * w * w + w * values * w + 2 * values * w
            total += 2 * (2 * (block + 2 * halo) - 1) * (w // heads // 2)
            total += values * w * outputs + 2 * outputs
            total += channels * outputs + 2 * outputs if index == 0 else 0
            channels = outputs
    if final:
        total, channels = total + channels * final + 2 * final, final
    total += channels * 1000 + 1000
    assert lambdanet.model_info(f"halonet_{name}").params == total


def layers_of(name, kind=lambdanet.HaloAttention, **options):
    with compat.without_values():
        model = lambdanet.create_model(name, features_only=True, **options)
    return [layer for layer in model.layers if isinstance(layer, kind)]


def test_heads_blocks_and_strides_of_the_stages():
    layers = layers_of("halonet_h4")
    assert [layer.num_heads for layer in layers] == [4] * 3 + [8] * (3 + 12 + 3)
    assert {(layer.block_size, layer.halo_size) for layer in layers} == {(12, 2)}
    strided = [layer.name for layer in layers if layer.strides == 2]
    assert strided == [f"c{stage}_block1_spatial" for stage in (3, 4, 5)]
    pools = layers_of("halonet_h4", keras.layers.AveragePooling2D)
    assert not [layer.name for layer in pools if layer.name.startswith("c")]


def test_hybrids_and_detection_networks():
    def gates(name):
        return {layer.name[:2] for layer in layers_of(name, lambdanet.SqueezeExcite)}

    assert {layer.name[:2] for layer in layers_of("halonet_h4_c12")} == {"c4", "c5"}
    layers = layers_of("halo_resnet_50", block_size=32)
    assert [layer.name for layer in layers] == [
        f"c5_block{i}_spatial" for i in (1, 2, 3)
    ]
    assert {(layer.block_size, layer.halo_size) for layer in layers} == {(32, 3)}
    assert gates("halonet_h4_c12") == {"c2", "c3"}
    assert gates("halo_resnet_50") == {"c2", "c3", "c4"}


def test_mobilenet_v2_is_that_of_keras_applications():
    theirs = keras.applications.MobileNetV2(
        weights=None, input_shape=(96, 96, 3), classifier_activation=None
    )
    rng = np.random.default_rng(1)
    theirs.set_weights([w + rng.uniform(0, 0.1, w.shape) for w in theirs.get_weights()])
    ours = lambdanet.create_model(
        "mobilenet_v2", input_size=96, batch_norm={"epsilon": 1e-3}
    )
    ours.set_weights(theirs.get_weights())
    x = images(2, 96, 96, 3)
    assert_near(ours(x), theirs(x), 1e-4)


def test_lambda_blocks_are_the_tenth_and_the_sixteenth():
    layers = layers_of("mobilenet_v2_lambda", lambdanet.LambdaLayer)
    assert [layer.name for layer in layers] == ["block10_lambda", "block16_lambda"]
    assert [layer.filters for layer in layers] == [64, 160]
    assert all(
        (layer.key_dim, layer.num_heads, layer.position.scope) == (8, 4, 5)
        for layer in layers
    )
    depthwise = layers_of("mobilenet_v2_lambda", keras.layers.DepthwiseConv2D)
    assert len(depthwise) == 15
    (*_, drop) = layers_of(
        "mobilenet_v2_lambda", lambdanet.StochasticDepth, stochastic_depth_rate=0.01
    )
    assert drop.rate == pytest.approx(0.01 * 16 / 17)
