# SPDX-License-Identifier: Apache-2.0
"""Weights of U-Nets in PyTorch give the outputs of a plain network in float64."""

import re

import keras
import numpy as np
import pytest

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models import unet
from lambdanet.models.weights.unet_rules import convert_unet

NORM = ("weight", "bias", "running_mean", "running_var")
FILTERS = (32, 64, 96)


def shapes_of(lambdas, bias=True):
    """The tensors of a U-Net of three levels: two channels in, three classes out."""
    shapes = {}

    def convolution(name, inputs, outputs, size=3, has_bias=bias):
        shapes[f"{name}.weight"] = (outputs, inputs, size, size)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)

    def norm(name, channels):
        shapes.update({f"{name}.{tensor}": (channels,) for tensor in NORM})

    def lambda_layer(name, inputs, outputs):
        heads, k, u = outputs // 32, 16, 4
        for part, width in (("q", heads * k), ("k", k * u), ("v", 32 * u)):
            shapes[f"{name}.to_{part}.weight"] = (width, inputs, 1, 1)
        norm(f"{name}.norm_q", heads * k)
        norm(f"{name}.norm_v", 32 * u)
        shapes[f"{name}.pos_conv.weight"] = (k, u, 1, 3, 3)
        shapes[f"{name}.pos_conv.bias"] = (k,)
        shapes[f"{name}.tem_conv.weight"] = (k, u, 1, 3)
        shapes[f"{name}.tem_conv.bias"] = (k,)

    blocks = [("inc", 2, FILTERS[0], convolution)]
    for level in (1, 2):
        operation = lambda_layer if lambdas else convolution
        name = f"down{level}.maxpool_conv.1"
        blocks.append((name, FILTERS[level - 1], FILTERS[level], operation))
    for number, level in ((1, 1), (2, 0)):
        width = FILTERS[level]
        shapes[f"up{number}.up.weight"] = (FILTERS[level + 1], width, 2, 2)
        shapes[f"up{number}.up.bias"] = (width,)
        blocks.append((f"up{number}.conv", 2 * width, width, convolution))
    for block, inputs, outputs, operation in blocks:
        for number, width in ((0, inputs), (3, outputs)):
            operation(f"{block}.double_conv.{number}", width, outputs)
            norm(f"{block}.double_conv.{number + 1}", outputs)
    convolution("outc.conv", 32, 3, 1, True)
    return shapes


def tensors_of(shapes):
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes.items():
        values = random.normal(size=shape) * np.prod(shape[1:], dtype=float) ** -0.5
        if name.endswith("running_var"):
            values = (
                np.abs(values) + 20.0
            )  # so that products of lambda layers stay small
        tensors[name] = values.astype(np.float32)
        if name.endswith("running_mean"):
            tensors[name.replace("running_mean", "num_batches_tracked")] = np.int64(9)
    return tensors


def network(lambdas):
    table = unet.MODELS["lambda_unet_2_5d" if lambdas else "unet_2d"]
    letters = "LL" if lambdas else "CC"
    down = ("CC", letters, letters)
    row = unet.UNet(FILTERS, down, ("CC", "CC"), table.operations, table.strides)
    return unet.create_unet(row, num_classes=3, in_channels=2)


def convolved(x, kernel, bias=0.0):
    """A convolution [outputs, inputs, r, r] of each slice of [s, h, w, c], with zeros around it."""
    r = kernel.shape[-1] // 2
    padded = np.pad(x, [(0, 0), (r, r), (r, r), (0, 0)])
    _, height, width, _ = x.shape
    return bias + sum(
        padded[:, i : i + height, j : j + width] @ kernel[:, :, i, j].T
        for i in range(2 * r + 1)
        for j in range(2 * r + 1)
    )


def naive_network(tensors, x):
    """One stack of slices [s, h, w, 2] through three levels, in float64 but for lambda layers."""
    t = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}

    def operate(x, name):
        if f"{name}.weight" in t:
            return convolved(x, t[f"{name}.weight"], t.get(f"{name}.bias", 0.0))
        own = {
            n.removeprefix(f"{name}."): tensor
            for n, tensor in tensors.items()
            if n.startswith(f"{name}.")
        }
        options = {"intra_depth": 4, "scope": 3, "position_bias": True}
        filters = 2 * len(t[f"{name}.to_q.weight"])  # heads of 16 and 32
        layer = lambdanet.SliceLambdaLayer(filters, num_heads=filters // 32, **options)
        stack = x[np.newaxis].astype("float32")
        layer.build(stack.shape)
        lambdanet.convert_layer(own, layer)
        return keras.ops.convert_to_numpy(layer(stack))[0].astype(np.float64)

    def block(x, name):
        for number in (0, 3):
            x = operate(x, f"{name}.double_conv.{number}")
            gamma, beta, mean, variance = (
                t[f"{name}.double_conv.{number + 1}.{part}"] for part in NORM
            )
            x = np.maximum((x - mean) / np.sqrt(variance + 1e-5) * gamma + beta, 0)
        return x

    maps = [block(x, "inc")]
    for level in (1, 2):
        s, height, width, c = maps[-1].shape
        pooled = maps[-1].reshape(s, height // 2, 2, width // 2, 2, c).max(axis=(2, 4))
        maps.append(block(pooled, f"down{level}.maxpool_conv.1"))
    last = maps.pop()
    for number in (1, 2):
        twin = maps.pop()
        wide = np.einsum("shwc,cdij->shiwjd", last, t[f"up{number}.up.weight"])
        wide = wide.reshape(*twin.shape[:3], -1) + t[f"up{number}.up.bias"]
        last = block(np.concatenate([twin, wide], axis=-1), f"up{number}.conv")
    return convolved(last, t["outc.conv.weight"], t["outc.conv.bias"])


@pytest.mark.parametrize(
    "lambdas", [True, False], ids=["lambda layers", "convolutions"]
)
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no biases"])
def test_logits_equal_those_of_the_tensors(lambdas, bias):
    tensors = tensors_of(shapes_of(lambdas, bias))
    model = network(lambdas)
    assert convert_unet(tensors, model) is model
    x = np.random.default_rng(1).normal(size=(3, 8, 12, 2)).astype(np.float32)
    expected = naive_network(tensors, x)
    outputs = model(x[np.newaxis])[0] if lambdas else model(x)
    tolerance = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"outc.conv.bias": None}, "outc.conv.bias is missing"),
        ({"stranger": (3,)}, "stranger has no variable"),
        (
            {"up1.up.weight": (64, 96, 2, 2)},
            r"up1.up.weight has the shape \(64, 96, 2, 2\), not \(96, 64, 2, 2\)",
        ),
        (
            {"down1.maxpool_conv.1.double_conv.0.to_q.weight": None},
            "must be the tensors of one layer",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(changed, message):
    tensors = tensors_of(shapes_of(True))
    for name, shape in changed.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.zeros(shape, np.float32)
    model = network(True)
    before = model.get_weights()
    with pytest.raises(InputError) as error:
        convert_unet(tensors, model)
    assert re.search(message, str(error.value)) and "\n" not in str(error.value)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
