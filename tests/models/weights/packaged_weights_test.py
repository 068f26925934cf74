# SPDX-License-Identifier: Apache-2.0
"""The weights in the package: loaded by name alone, with their classes, preprocessing and accuracy."""

import numpy as np
import pytest
from refusals import refused
from sklearn.datasets import load_digits

import lambdanet
from lambdanet import create_model
from lambdanet.models.weights import tensor_files, weight_files
from lambdanet.training.serving import trained_weights

FILES = sorted(weight_files.PACKAGED.iterdir())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_weights_are_loaded_by_name_alone(file):
    name, weights = file.name.split(".")[:2]
    model = create_model(name, weights=weights)
    names = lambdanet.class_names(name, weights)
    prepare = lambdanet.preprocess_for(name, weights)
    pictures = np.zeros([2, 40, 30, 1], np.uint8)
    logits = model(np.asarray(prepare(pictures)))
    assert len(lambdanet.decode_predictions(logits, names, top=1)) == 2
    metadata = tensor_files.metadata_of(file)
    assert file.stat().st_size < 1_000_000
    assert {"license", "dataset", "classes", "mean", "std"} <= metadata.keys()


@pytest.mark.slow
def test_digits_are_told_apart():
    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)[..., np.newaxis]
    model = create_model("lambda_resnet_tiny", weights="digits")
    prepare = lambdanet.preprocess_for("lambda_resnet_tiny", "digits")
    answers = model.predict(np.asarray(prepare(pixels)), verbose=0).argmax(-1)
    assert np.mean(answers == digits.target) > 0.98


def test_classifier_for_serving_has_the_channels_of_its_weights():
    found = trained_weights.build_classifier("lambda_resnet_micro", "fashion_mnist")
    assert found.model.input_shape[-1] == 1
    assert found.class_names[-1] == "Ankle boot"


def test_unknown_sets_name_those_in_the_package():
    with refused("fashion_mnist"):
        create_model("lambda_resnet_micro", weights="mnist")


def test_numbers_that_are_given_win():
    model = create_model("lambda_resnet_tiny", num_classes=0, weights="digits")
    assert len(model.output_shape) == 2
    with refused("logits"):
        create_model("lambda_resnet_tiny", num_classes=7, weights="digits")
