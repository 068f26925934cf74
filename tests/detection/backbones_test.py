# SPDX-License-Identifier: Apache-2.0
"""Backbones from the zoo; the convolutional ones against Model Garden's own ResNet."""

import importlib
import json

import keras as keras_3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from helpers import ROOT
from refusals import refused

from lambdanet.backend import compat
from lambdanet.detection.model_garden import (
    backbone_factory,
    common,
    optimization,
)
from lambdanet.detection.modeling import backbones
from lambdanet.detection.modeling.backbones import LambdaResNet, MobileNetV2Lambda
from lambdanet.layers.stochastic_depth import StochasticDepth

NORM = common.NormActivation(norm_momentum=0.9, norm_epsilon=1e-5)


def build(config, norm_activation=NORM, size=64, regularizer=None):
    family = (
        "lambda_resnet" if isinstance(config, LambdaResNet) else "mobilenet_v2_lambda"
    )
    images = keras.layers.InputSpec(shape=[None, size, size, 3])
    config = backbones.Backbone(type=family, **{family: config})
    return backbone_factory.build_backbone(images, config, norm_activation, regularizer)


@pytest.mark.parametrize(
    "config", [LambdaResNet(model_id="lambda_resnet_tiny"), MobileNetV2Lambda()]
)
def test_configuration_reaches_every_layer(config):
    config = config.replace(stochastic_depth_drop_rate=0.2, bn_trainable=False)
    norm = common.NormActivation(
        activation="swish", norm_momentum=0.997, norm_epsilon=1e-4, use_sync_bn=True
    )
    backbone = build(config, norm)
    layers = [*compat.sublayers(backbone.network)]
    norms = [
        layer
        for layer in layers
        if isinstance(layer, keras_3.layers.BatchNormalization)
    ]
    assert len(norms) > 20
    for layer in norms:
        assert (layer.momentum, layer.epsilon) == (0.997, 1e-4)
        assert layer.synchronized and not layer.trainable
    assert activations(backbone) == {"silu"}
    rates = [layer.rate for layer in layers if isinstance(layer, StochasticDepth)]
    assert max(rates) == pytest.approx(0.2, rel=0.2) and min(rates) > 0


def activations(backbone):
    """Returns the names of the functions of the activation layers."""
    layers = compat.sublayers(backbone.network)
    return {
        layer.activation.__name__
        for layer in layers
        if isinstance(layer, keras_3.layers.Activation)
    }


def test_options_reach_the_layers():
    options = {"key_dim": 8, "num_heads": 2, "scope": 0}
    network = build(LambdaResNet(model_id="lambda_resnet_tiny", **options)).network
    layer = network.get_layer("c5_block1_spatial")
    assert (layer.key_dim, layer.num_heads, layer.position.scope) == (8, 2, None)
    halo = build(LambdaResNet(model_id="halo_resnet_50", block_size=32))
    assert halo.network.get_layer("c5_block2_spatial").block_size == 32


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        (LambdaResNet(model_id="eca_halonext26ts"), "silu"),
        (MobileNetV2Lambda(), "relu6"),
    ],
)
def test_backbone_from_config(config, activation):
    backbone = build(config, size=96)
    assert activations(backbone) == {activation}  # the model's own
    restored = type(backbone).from_config(backbone.get_config())
    assert [w.name for w in restored.weights] == [w.name for w in backbone.weights]
    assert restored.output_specs == backbone.output_specs
    assert list(backbone.output_specs) == ["2", "3", "4", "5"]
    assert [shape[1] for shape in backbone.output_specs.values()] == [24, 12, 6, 3]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            LambdaResNet(model_id="mobilenet_v2"),
            "unknown model_id of backbone 'lambda_resnet' 'mobile",
        ),
        (
            LambdaResNet(model_id="resnet_50", key_dim=8),
            "model 'resnet_50' has no option 'key_dim'",
        ),
        (
            LambdaResNet(stochastic_depth_drop_rate=1.0),
            r"stochastic_depth_drop_rate must be in \[0, 1\)",
        ),
    ],
)
def test_build_refuses(config, message):
    with refused(message):
        build(config)


def test_import_has_one_name(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match="import lambdanet.detection, not detection"):
        importlib.import_module("detection")


def test_precision_is_that_of_tf_keras_and_ends_with_the_backbone():
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        backbone = build(LambdaResNet(model_id="lambda_resnet_tiny"))
    finally:
        keras.mixed_precision.set_global_policy(before)
    assert backbone.network.get_layer("stem2_conv").compute_dtype == "bfloat16"
    assert all(weight.dtype == tf.float32 for weight in backbone.weights)
    assert {x.dtype for x in backbone(tf.zeros([1, 64, 64, 3])).values()} == {
        tf.bfloat16
    }
    assert keras_3.config.dtype_policy().name == "float32"


def test_losses_of_a_regularizer_survive_the_configuration():
    config = LambdaResNet(model_id="lambda_resnet_tiny")
    backbone = build(config, regularizer=keras.regularizers.L2(1e-3))
    kernels = [
        weight for weight in backbone.trainable_weights if "kernel" in weight.name
    ]
    expected = sum(float(tf.reduce_sum(kernel**2)) for kernel in kernels) * 1e-3
    assert float(tf.add_n(backbone.losses)) == pytest.approx(expected, rel=1e-5)
    copy = backbones.ZooBackbone.from_config(backbone.get_config())
    copy.set_weights(backbone.get_weights())
    assert float(tf.add_n(copy.losses)) == pytest.approx(expected, rel=1e-5)
    json.dumps(keras.saving.serialize_keras_object(backbone))


def test_decay_of_model_gardens_optimizers():
    backbone = build(LambdaResNet(model_id="lambda_resnet_tiny"))
    options = {
        "weight_decay_rate": 1.0,
        "exclude_from_weight_decay": ["gamma", "beta", "position"],
    }
    factory = optimization.OptimizerFactory(
        optimization.OptimizationConfig(
            {
                "optimizer": {"type": "adamw", "adamw": options},
                "learning_rate": {
                    "type": "constant",
                    "constant": {"learning_rate": 0.1},
                },
            }
        )
    )
    optimizer = factory.build_optimizer(factory.build_learning_rate())
    variables = backbone.trainable_weights
    before = [variable.numpy() for variable in variables]
    optimizer.apply_gradients(
        [(tf.zeros_like(variable), variable) for variable in variables]
    )
    for variable, old in zip(variables, before, strict=True):
        decays = "kernel" in variable.name
        np.testing.assert_allclose(
            variable, 0.9 * old if decays else old, rtol=1e-5, err_msg=variable.name
        )
