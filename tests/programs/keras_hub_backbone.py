# SPDX-License-Identifier: Apache-2.0
"""Uses a network of the zoo as a backbone of KerasHub, with Keras 3 on torch."""

import sys
from typing import Any
from unittest import mock

import keras
import keras_hub  # noqa: F401  before lambdanet
import numpy as np
from small_models import only_few_blocks

import lambdanet
from lambdanet.core.errors import InputError
from lambdanet.models.keras_hub_backbone import LambdaNetBackbone

IMAGES = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")
# One of each file of the zoo.
FAMILIES = (
    "resnet_50",
    "resnet_rs_50",
    "lambda_resnet_tiny",
    "mobilenet_v2_lambda",
    "halonet_h0",
    "halonet26t",
    "efficientnet_b0",
)


def main() -> None:
    keras.utils.set_random_seed(0)
    trunk = lambdanet.create_model(
        "lambda_resnet_tiny", input_size=32, features_only=True
    )
    backbone = LambdaNetBackbone("lambda_resnet_tiny", {"input_size": 32})
    backbone.set_weights(trunk.get_weights())
    expected = trunk.predict(IMAGES, verbose=0)
    # Keras keeps its own kind of dict, which JAX cannot return.
    levels = dict(backbone.pyramid_outputs)
    pyramid = keras.Model(backbone.input, levels).predict(IMAGES, verbose=0)
    for level, features in expected.items():
        np.testing.assert_array_equal(pyramid[f"P{level}"], features)
    np.testing.assert_array_equal(backbone.predict(IMAGES, verbose=0), expected["5"])

    check_by_keras_hub()
    try:
        LambdaNetBackbone.from_preset("lambda_resnet_51")
    except InputError as error:
        assert "did you mean lambda_resnet_50" in str(error)


def check_by_keras_hub() -> None:
    """Runs KerasHub's own test of a backbone, in the global precision, on images with their channels last."""
    sys.modules.setdefault("grain", mock.MagicMock())  # for tests of tokenizers
    from keras_hub.src.tests.test_case import TestCase

    for name in FAMILIES:
        with only_few_blocks(name):
            check_family(TestCase(), name)


def check_family(tests: Any, name: str) -> None:
    arguments = {"name": name, "options": {"input_size": 32}}
    tests.run_vision_backbone_test(
        LambdaNetBackbone,
        arguments,
        IMAGES,
        expected_output_shape=(2, *LambdaNetBackbone(**arguments).output.shape[1:]),
        expected_pyramid_output_keys=["P2", "P3", "P4", "P5"],
        expected_pyramid_image_sizes=[(8, 8), (4, 4), (2, 2), (1, 1)],
        run_mixed_precision_check=False,
        run_quantization_check=False,
        run_data_format_check=False,
    )


if __name__ == "__main__":
    main()
