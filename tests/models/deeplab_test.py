# SPDX-License-Identifier: Apache-2.0
"""DeepLabV3+ on networks of the zoo: any size, its strides, and the weights of a classifier."""

import numpy as np
import pytest
from helpers import assert_equal_arrays
from refusals import refused
from small_models import only_few_blocks

import lambdanet
from lambdanet.backend import keras
from lambdanet.models.weights import weight_files
from lambdanet.training.data.class_names import Classes
from lambdanet.training.run.start import load_initial_weights

SMALL = {"filters": 8, "low_level_filters": 4, "dilation_rates": (1, 2)}


def random_images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", ["lambda_resnet_micro", "mobilenet_v2_lambda"])
@pytest.mark.parametrize("output_stride", [8, 32])
def test_logits_of_pictures_of_any_size(name, output_stride):
    with only_few_blocks(name):
        model = lambdanet.create_deeplab(name, 5, output_stride=output_stride, **SMALL)
    for size in ((33, 50), (64, 64)):
        logits = model.predict(random_images(1, *size, 3), verbose=0)
        assert logits.shape == (1, *size, 5)
    assert model.name == name


def test_backbone_of_a_classifier(tmp_path):
    """The weights of a classifier are those of the backbone, and the head keeps its own."""
    name = "resnet_micro"
    classifier = lambdanet.create_model(name, num_classes=3)
    file = tmp_path / "weights.safetensors"
    weight_files.save(classifier, file)
    model = lambdanet.create_deeplab(name, 5, **SMALL)
    head = model.get_layer("logits").get_weights()
    line = load_initial_weights(model, file)
    assert line.endswith(
        "the backbone has its weights, and the head starts with random ones"
    )
    assert_equal_arrays(model.get_layer("logits").get_weights(), head)
    trunk = keras.Model(model.input, model.get_layer("c5_interleaved1").output)
    plain = lambdanet.create_model(name, features_only=True, weights=file)
    images = random_images(1, 64, 64, 3)
    found = trunk.predict(images, verbose=0)[:, ::2, ::2]
    expected = plain.predict(images, verbose=0)["5"]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("argument", ["num_classes", "filters", "low_level_filters"])
def test_counts_are_positive(argument):
    with refused(f"{argument} must be a positive integer, got 0"):
        lambdanet.create_deeplab(
            **{"backbone": "resnet_micro", "num_classes": 2, argument: 0}
        )


def test_classes_in_another_order(tmp_path):
    """The columns of the classifier follow the names of the classes; with `zero_head` they are 0."""
    file = tmp_path / "weights.safetensors"
    trained, model = (
        lambdanet.create_deeplab("resnet_micro", 3, **SMALL) for _ in range(2)
    )
    weight_files.save(trained, file, {"classes": '["a", "b", "c"]'})
    line = load_initial_weights(model, file, classes=Classes("data", 3, "cab"))
    assert line.endswith("in another order: matched by name")
    kernel, _ = trained.get_layer("logits").get_weights()
    assert_equal_arrays(
        model.get_layer("logits").get_weights()[:1], [kernel[:, [2, 0, 1]]]
    )
    load_initial_weights(model, file, zero_head=True)
    assert not np.any(model.get_layer("logits").get_weights()[0])
