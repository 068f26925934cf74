# SPDX-License-Identifier: Apache-2.0
"""The networks that timm has trained, against timm: random weights in, equal features and logits out."""

import numpy as np
import pytest
import tf_keras as keras

from lambdanet.models import complexity, timm_weights, zoo
from lambdanet.models.parts import Parts
from lambdanet.models.timm_networks import MODELS

# The sizes of images that a network of timm takes with one set of weights: multiples of the halo blocks at
# stride 32; a single one where bottleneck attention or `26rpt` has tables for it.
SIZES = {
    "lambda_resnet26t": [(256, 256), (96, 160)],
    "lambda_resnet26rpt_256": [(256, 256)],
    "lambda_resnet50ts": [(256, 256), (160, 96)],
    "lamhalobotnet50ts_256": [(256, 256)],
    "halo2botnet50ts_256": [(256, 256)],
    "halonet26t": [(256, 256), (256, 512)],
    "halonet50ts": [(256, 256), (512, 256)],
    "sehalonet33ts": [(256, 256), (256, 512)],
    "eca_halonext26ts": [(256, 256), (512, 256)],
    "haloregnetz_b": [(224, 224), (224, 448)],
    "botnet26t_256": [(256, 256)],
    "sebotnet33ts_256": [(256, 256)],
    "eca_botnext26ts_256": [(256, 256)],
}
# float32; tables of other sizes than those that the network was trained with, which timm makes on request.
FLOAT32 = [
    ("lambda_resnet26t", (256, 256)),
    ("lambda_resnet26rpt_256", (128, 192)),
    ("halonet26t", (256, 256)),
    ("haloregnetz_b", (224, 224)),
    ("botnet26t_256", (192, 128)),
    ("eca_botnext26ts_256", (128, 192)),
    ("lamhalobotnet50ts_256", (128, 256)),
]


@pytest.fixture
def policy():
    """Sets the policy of the layers that a test makes."""
    yield keras.mixed_precision.set_global_policy
    keras.mixed_precision.set_global_policy("float32")


def peer(timm, name, dtype, **arguments):
    """A network of timm, every parameter and statistic of which makes a difference."""
    import torch

    net = timm.create_model(name, **arguments).eval().to(getattr(torch, dtype))
    random = np.random.default_rng(0)
    for key, tensor in net.state_dict().items():
        if key.endswith("running_var"):
            values = random.uniform(0.5, 1.5, tensor.shape)
        elif key.endswith(".weight") and tensor.ndim == 1:  # of a normalisation, or zero
            values = random.normal(1.0, 0.2, tensor.shape)
        elif tensor.ndim == 1:
            values = random.normal(0.0, 0.2, tensor.shape)
        elif "pos_emb." in key or "pos_embed" in key:
            values = random.normal(0.0, 0.2, tensor.shape)
        elif "conv_lambda" in key or key.endswith("pos_emb"):  # sums over many positions
            values = random.normal(0.0, 0.02, tensor.shape)
        else:
            continue
        tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
    return net


def ours(name, net, input_size=None):
    """The same network here: images -> features of every stage, and logits."""
    architecture, parts = zoo.MODELS[name], Parts()
    images = keras.Input([*(input_size or (None, None)), 3])
    endpoints = architecture.endpoints(images, parts)
    logits = architecture.logits(endpoints, parts, 1000)
    model = keras.Model(images, {**endpoints, "logits": logits}, name=name)
    timm_weights.load(model, {key: tensor.numpy() for key, tensor in net.state_dict().items()})
    return model


def outputs_of(net, images):
    import torch

    dtype = next(net.parameters()).dtype
    with torch.no_grad():
        last, (_, *stages) = net.forward_intermediates(
            torch.tensor(images.transpose(0, 3, 1, 2), dtype=dtype), exclude_final_conv=True
        )
        logits = net.forward_head(last).numpy()
    features = {str(level): x.numpy().transpose(0, 2, 3, 1) for level, x in enumerate(stages, start=2)}
    return {**features, "logits": logits}


def assert_equal_outputs(model, net, size, tolerance):
    images = np.random.default_rng(1).normal(size=[1, *size, 3]).astype(np.float32)
    expected, outputs = outputs_of(net, images), model(images)
    assert outputs.keys() == expected.keys()
    for key, values in expected.items():
        assert outputs[key].dtype == values.dtype
        np.testing.assert_allclose(outputs[key], values, rtol=0, atol=tolerance * np.abs(values).max())


@pytest.mark.parametrize("name", MODELS)
def test_in_float64(timm, policy, name):
    """Parameters to the integer; features and logits at every size to ten digits."""
    policy("float64")
    net = peer(timm, name, "float64")
    model = ours(name, net)
    assert complexity.count_parameters(model) == sum(p.numel() for p in net.parameters())
    for size in SIZES[name]:
        assert_equal_outputs(model, net, size, 1e-10)


@pytest.mark.parametrize(("name", "size"), FLOAT32)
def test_in_float32(timm, name, size):
    """Also with tables for images that are not square."""
    square = size == (MODELS[name].input_size,) * 2
    net = peer(timm, name, "float32", **({} if square else {"img_size": size}))
    assert_equal_outputs(ours(name, net, size), net, size, 1e-4)
