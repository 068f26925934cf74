# SPDX-License-Identifier: Apache-2.0
"""timm's networks against timm: with equal random weights, features and logits are equal."""

import keras
import numpy as np
import pytest
from helpers import assert_near
from naive_layers import images

import lambdanet
from lambdanet.models import complexity, zoo
from lambdanet.models.layer_builder import LayerBuilder
from lambdanet.models.timm_networks import MODELS
from lambdanet.models.weights import timm_rules

# The sizes of images that a network of timm takes with one set of weights: multiples of the halo blocks at
# stride 32; that of its tables where it has bottleneck attention or is `26rpt`. The smaller networks have
# two, and the others one that is not square.
SIZES = {
    "lambda_resnet26t": [(256, 256), (96, 160)],
    "lambda_resnet26rpt_256": [(256, 256)],
    "lambda_resnet50ts": [(160, 96)],
    "lamhalobotnet50ts_256": [(256, 256)],
    "halo2botnet50ts_256": [(256, 256)],
    "halonet26t": [(256, 256), (256, 512)],
    "halonet50ts": [(512, 256)],
    "sehalonet33ts": [(256, 256)],
    "eca_halonext26ts": [(512, 256)],
    "haloregnetz_b": [(224, 224)],
    "botnet26t_256": [(256, 256)],
    "sebotnet33ts_256": [(256, 256)],
    "eca_botnext26ts_256": [(256, 256)],
}
# Their blocks are also in other networks.
WEEKLY = {
    "halo2botnet50ts_256",
    "halonet50ts",
    "sebotnet33ts_256",
    "eca_botnext26ts_256",
}
# float32; tables of other sizes than those that the network was trained with, which timm makes on request.
FLOAT32 = [
    ("lambda_resnet26rpt_256", (128, 192)),
    ("botnet26t_256", (192, 128)),
    ("eca_botnext26ts_256", (128, 192)),
]

# Billions of multiply-adds at 256 pixels, as timm publishes them; it counts some sums that are none here.
GIGA_MULTIPLY_ADDS = {
    "halonet26t": 3.19,
    "eca_halonext26ts": 2.44,
    "lambda_resnet26t": 3.02,
}


def peer(timm, name, dtype, **arguments):
    """A network of timm whose parameters and statistics all affect its outputs."""
    import torch

    net = timm.create_model(name, dtype=getattr(torch, dtype), **arguments).eval()
    random = np.random.default_rng(0)
    for key, tensor in net.state_dict().items():
        if key.endswith("running_var"):
            values = random.uniform(0.5, 1.5, tensor.shape)
        # Of a normalization, or zero.
        elif key.endswith(".weight") and tensor.ndim == 1:
            values = random.normal(0.5, 0.15, tensor.shape)
        elif tensor.ndim == 1 or "pos_emb." in key or "pos_embed" in key:
            values = random.normal(0.0, 0.2, tensor.shape)
        # Sums over many positions.
        elif "conv_lambda" in key or key.endswith("pos_emb"):
            values = random.normal(0.0, 0.02, tensor.shape)
        else:
            continue
        tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
    return net


def ours(name, net, input_size=None):
    """The same network here: images -> features of every stage, embedding and logits."""
    architecture, builder = zoo.MODELS[name], LayerBuilder()
    images = keras.Input([*(input_size or (None, None)), 3])
    endpoints = architecture.endpoints(images, builder)
    embedding = architecture.embedding(endpoints, builder)
    outputs = {"embedding": embedding, "logits": builder.classifier(embedding, 1000)}
    model = keras.Model(images, {**endpoints, **outputs}, name=name)
    timm_rules.load(
        model, {key: tensor.numpy() for key, tensor in net.state_dict().items()}
    )
    return model


def outputs_of(net, images):
    """The same of timm's network, with the map at stride 2 that its `features_only` returns."""
    import torch

    maps = []
    half = net.get_submodule(net.feature_info[0]["module"])
    hook = half.register_forward_hook(
        lambda module, inputs, output: maps.append(output)
    )
    images = torch.tensor(
        images.transpose(0, 3, 1, 2), dtype=next(net.parameters()).dtype
    )
    with torch.no_grad():
        last, (_, *stages) = net.forward_intermediates(images, exclude_final_conv=True)
        embedding, logits = (
            net.forward_head(last, pre_logits=is_first).numpy()
            for is_first in (True, False)
        )
    hook.remove()
    maps += stages
    features = {
        str(level): x.numpy().transpose(0, 2, 3, 1)
        for level, x in enumerate(maps, start=1)
    }
    return {**features, "embedding": embedding, "logits": logits}


def images_of(size):
    return images(1, *size, 3, seed=1)


def assert_equal(outputs, expected, tolerance):
    assert outputs.keys() == expected.keys()
    for key, values in expected.items():
        assert outputs[key].dtype == values.dtype
        assert_near(outputs[key], values, tolerance)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.weekly] if name in WEEKLY else [])
        for name in MODELS
    ],
)
def test_in_float64(timm, freed, double_precision, name):
    """Parameters to the integer; features and logits at every size to twelve digits."""
    net = peer(timm, name, "float64")
    expected = [outputs_of(net, images_of(size)) for size in SIZES[name]]
    model = ours(name, net)
    assert complexity.count_parameters(model) == sum(
        p.numel() for p in net.parameters()
    )
    del net
    for size, values in zip(SIZES[name], expected, strict=True):
        assert_equal(model(images_of(size)), values, 1e-12)


@pytest.mark.parametrize(("name", "size"), FLOAT32)
def test_in_float32(timm, freed, name, size):
    net = peer(timm, name, "float32", img_size=size)
    assert_equal(
        ours(name, net, size)(images_of(size)), outputs_of(net, images_of(size)), 1e-5
    )


@pytest.mark.parametrize("name", GIGA_MULTIPLY_ADDS)
def test_multiply_adds(name):
    flops = lambdanet.model_info(name).flops
    assert flops / 2e9 == pytest.approx(GIGA_MULTIPLY_ADDS[name], rel=0.01)
