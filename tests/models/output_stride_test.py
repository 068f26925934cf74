# SPDX-License-Identifier: Apache-2.0
"""Networks with an output stride: their finer maps beside those without one, shifts, files and errors."""

import keras
import numpy as np
import pytest
from helpers import images
from small_models import small_model

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models import complexity
from lambdanet.models.weights import weight_files

# Lambda layers, depthwise convolutions, halo and global attention, and tables for one size of map.
NETWORKS = (
    "lambda_resnet_tiny",
    "mobilenet_v2_lambda",
    "halonet_h0",
    "sehalonet33ts",
    "haloregnetz_b",
    "botnet26t_256",
    "lambda_resnet26rpt_256",
)


def build(name, output_stride=32, **options):
    """A network of random statistics and gains, so that no block is the identity."""
    model = small_model(name, output_stride=output_stride, **options)
    random = np.random.default_rng(0)
    for weight in model.weights:
        if weight.path.endswith(("gamma", "variance")):
            weight.assign(random.uniform(0.5, 1.5, weight.shape))
    return model


@pytest.mark.parametrize(
    ("name", "size", "output_stride"),
    [
        *((name, (45, 33), 8) for name in NETWORKS),
        ("lambda_resnet_tiny", (64, 96), 16),
    ],
)
def test_finer_maps_contain_those_of_the_plain_network(name, size, output_stride):
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
        atol = 1e-5 * abs(plain_map.numpy()).max()
        np.testing.assert_allclose(
            features[level][:, ::step, ::step], plain_map, rtol=1e-4, atol=atol
        )


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


def test_an_output_stride_of_32_is_the_plain_network():
    plain = lambdanet.create_model("lambda_resnet_tiny")
    explicit = lambdanet.create_model("lambda_resnet_tiny", output_stride=32)
    assert explicit.get_config() == plain.get_config()


def test_files_gradients_and_the_form_for_inference(tmp_path):
    model = lambdanet.create_model("lambda_resnet_tiny", num_classes=3, output_stride=8)
    weight_files.save(model, tmp_path / "tiny.safetensors")
    plain = lambdanet.create_model(
        "lambda_resnet_tiny", num_classes=3, weights=tmp_path / "tiny.safetensors"
    )
    np.testing.assert_array_equal(plain.get_weights()[5], model.get_weights()[5])
    x = images(2, 48, 40, 3)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    folded = lambdanet.for_inference(model)
    np.testing.assert_allclose(folded(x), model(x), rtol=1e-4, atol=1e-4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    losses = [model.train_on_batch(x, np.array([0, 2])) for _ in range(4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("build_model", "message"),
    [
        (
            lambda: lambdanet.create_model("resnet_50", output_stride=12),
            "output_stride must be one of 8, 16, 32, got 12",
        ),
        (
            lambda: lambdanet.create_model("efficientnet_b0", output_stride=16),
            "it takes no .* or output_stride",
        ),
        (
            lambda: complexity.count_flops(
                small_model("lambda_resnet_tiny", output_stride=16, input_size=32)
            ),
            "FLOPs of a model with an output_stride are not counted",
        ),
    ],
)
def test_what_has_no_output_stride_is_refused(build_model, message):
    with pytest.raises(InputError, match=message):
        build_model()
