# SPDX-License-Identifier: Apache-2.0
"""Keras's global settings against everything that builds a network."""

import keras
import numpy as np
import pytest
from helpers import assert_close, images, reloaded
from refusals import refused

import lambdanet
from lambdanet.backend import compat

SMALL = {"num_classes": 3, "input_size": 32}


def backbone(**options):
    from lambdanet.models.keras_hub_backbone import LambdaNetBackbone

    return LambdaNetBackbone("lambda_resnet_tiny", {"input_size": 32}, **options)


def stream():
    return lambdanet.streaming_model(sequences(causal="_causal"))


def sequences(causal=""):
    network = f"lambda_resnet18_1d{causal}"
    return lambdanet.create_sequence_model(network, 3, in_channels=4, length=16)


def zoo(name):
    return lambda: lambdanet.create_model(name, **SMALL)


BUILDERS = {
    "tiny": zoo("lambda_resnet_tiny"),
    "deeplab": lambda: lambdanet.create_deeplab("lambda_resnet_tiny", 3, 32),
    "unet": lambda: lambdanet.create_unet("unet_2d", 3, input_size=32),
    "sequences": sequences,
    "stream": stream,
    "KerasHub": backbone,
    "for inference": lambda: lambdanet.for_inference(zoo("resnet_micro")()),
    "volumes": lambda: lambdanet.inflate(zoo("resnet_micro")(), 4),
}
LARGE = ("resnet_50", "resnet_rs_50", "mobilenet_v2_lambda", "efficientnet_b0")
BUILDERS |= {name: zoo(name) for name in LARGE}
NEEDS_KERAS_HUB = pytest.mark.rest
NAMES = [name for name in BUILDERS if name != "KerasHub"]
NAMES.append(pytest.param("KerasHub", marks=NEEDS_KERAS_HUB))


@pytest.fixture
def settings():
    """Restores the settings."""
    settings = keras.config
    names = ("image_data_format", "epsilon", "floatx")
    before = {name: getattr(settings, name)() for name in names}
    yield settings
    for name, value in before.items():
        getattr(settings, f"set_{name}")(value)


def built(name):
    keras.utils.clear_session()  # the names of layers are the same again
    return BUILDERS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_settings_of_keras_change_no_network(name, settings):
    model = built(name)
    settings.set_image_data_format("channels_first")
    settings.set_epsilon(1e-2)
    other = built(name)
    assert settings.image_data_format() == "channels_first"
    for layer in compat.sublayers(other):
        assert getattr(layer, "data_format", "channels_last") == "channels_last"
    shapes = [weight.shape for weight in model.weights]
    assert shapes == [weight.shape for weight in other.weights]
    assert str(model.output_shape) == str(other.output_shape)
    if name in LARGE:
        return
    other.set_weights(model.get_weights())
    x = keras.tree.map_structure(lambda x: np.abs(images(2, *x.shape[1:])), model.input)
    pairs = [keras.tree.flatten(one.predict_on_batch(x)) for one in (other, model)]
    for found, expected in zip(*pairs, strict=True):
        assert_close(found, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "deeplab", "unet", "sequences"])
@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16", "float64"])
def test_logits_are_in_float32_or_better(name, policy):
    with compat.dtype_policy(policy):
        model = BUILDERS[name]()
    wide = "float64" if policy == "float64" else "float32"
    assert model.output.dtype == wide
    computed = {layer.compute_dtype for layer in model.layers[1:]} - {wide}
    assert computed == {policy.removeprefix("mixed_")} - {wide}


@pytest.mark.parametrize("floatx", ["float64", "float16"])
def test_inputs_have_the_type_of_those_of_keras(floatx, settings):
    settings.set_floatx(floatx)
    own = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    for name in ("tiny", "sequences"):
        model = BUILDERS[name]()
        assert model.inputs[0].dtype == own.inputs[0].dtype == floatx
        assert model.layers[1].compute_dtype == own.layers[0].compute_dtype


@pytest.mark.slow
@NEEDS_KERAS_HUB
def test_backbone_of_keras_hub_keeps_its_precision(tmp_path):
    mixed = backbone(dtype="mixed_float16")
    preset = str(tmp_path / "preset")
    mixed.save_to_preset(preset)
    plain = backbone()
    for model, expected in (
        (mixed, "float16"),
        (reloaded(mixed, tmp_path), "float16"),
        (type(mixed).from_preset(preset, dtype="bfloat16"), "bfloat16"),
        (plain, "float32"),
    ):
        assert {layer.compute_dtype for layer in model.layers} == {expected}
    for layer in compat.sublayers(plain):
        if layer.name == "queries":
            layer.quantize("int8")
    with refused("LambdaNetBackbone cannot be saved with int8 in 'queries'"):
        plain.save(tmp_path / "int8.keras")
    assert not (tmp_path / "int8.keras").exists()
