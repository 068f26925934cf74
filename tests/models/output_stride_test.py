# SPDX-License-Identifier: Apache-2.0
"""Networks with an output stride: their finer maps beside those without one, shifts, files and errors."""

import numpy as np
import pytest
from helpers import (
    assert_close,
    assert_near,
    images,
    randomize_normalizations,
    reloaded,
)
from refusals import refused
from small_models import small_model

import lambdanet
from lambdanet.models import complexity
from lambdanet.models.weights import weight_files


def build(name, output_stride=32, **options):
    """A network of random statistics and gains, so that no block is the identity."""
    model = small_model(name, output_stride=output_stride, **options)
    return randomize_normalizations(model)


@pytest.mark.parametrize(
    ("name", "output_stride"),
    [  # depthwise convolutions, halo and global attention, lambda layers, tables for one size of map
        ("mobilenet_v2_lambda", 8),
        ("halonet_h0", 8),
        ("botnet26t_256", 8),
        ("lambda_resnet26rpt_256", 8),
        ("lambda_resnet_tiny", 16),
        pytest.param("lambda_resnet_tiny", 8, marks=pytest.mark.weekly),
        pytest.param("sehalonet33ts", 8, marks=pytest.mark.weekly),
        pytest.param("haloregnetz_b", 8, marks=pytest.mark.weekly),
    ],
)
def test_finer_maps_contain_those_of_the_plain_network(name, output_stride):
    size = (45, 33)
    x = images(2, *size, 3)
    plain = build(name, features_only=True)
    model = build(name, output_stride, features_only=True)
    model.set_weights(plain.get_weights())
    features = model(x)
    for level, plain_map in plain(x).items():
        stride = min(2 ** int(level), output_stride)
        rounded_up = tuple(-(-side // stride) for side in size)
        assert features[level].shape == (2, *rounded_up, plain_map.shape[-1])
        step = 2 ** int(level) // stride
        assert_near(features[level][:, ::step, ::step], plain_map, 2e-5)


def test_a_shifted_picture_shifts_the_finer_map():
    """By one position per output stride, where the border is not seen."""
    x = images(1, 256, 256, 3)
    shifted = np.roll(x, (8, 16), axis=(1, 2))
    one_block = {"stages": ("C", "C", "C", "C")}
    model = build("resnet_50", 8, features_only=True, **one_block)
    before = model(x)["5"].numpy()[0, 12:20, 12:20]
    after = model(shifted)["5"].numpy()[0, 13:21, 14:22]
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4)
    assert np.ptp(before) > 1


@pytest.mark.slow
def test_files_and_the_form_for_inference(tmp_path):
    model = lambdanet.create_model("lambda_resnet_tiny", num_classes=3, output_stride=8)
    weight_files.save(model, tmp_path / "tiny.safetensors")
    plain = lambdanet.create_model(
        "lambda_resnet_tiny", num_classes=3, weights=tmp_path / "tiny.safetensors"
    )
    np.testing.assert_array_equal(plain.get_weights()[5], model.get_weights()[5])
    x = images(2, 48, 40, 3)
    reloaded(model, tmp_path, x)
    folded = lambdanet.for_inference(model)
    assert_close(folded(x), model(x), 1e-4)


def test_flops_of_finer_maps_are_not_counted():
    model = small_model("lambda_resnet_tiny", output_stride=16, input_size=32)
    with refused("FLOPs of a model with an output_stride are not counted"):
        complexity.count_flops(model)
