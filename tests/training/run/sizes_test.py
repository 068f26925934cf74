# SPDX-License-Identifier: Apache-2.0
"""Training at another size than evaluation, and networks without it; its run is in freezing_test."""

import dataclasses

import pytest
from refusals import refused
from training_runs import recipe_with

from lambdanet.training.run import build

RECIPE = recipe_with("digits", epochs=2, input_size=16, training_size=12)


@pytest.mark.parametrize("size", [-1, 8.5, 1 << 16])
def test_sizes_that_cannot_be_used(size):
    with refused("training_size must be an integer"):
        dataclasses.replace(RECIPE, training_size=size)


def test_network_with_global_scope_is_rejected(one_block):
    options = {"model_options": {"scope": None}, "training_size": 32, "input_size": 64}
    with refused(
        "training_size must be 0 for lambda_resnet_tiny, which has weights that depend"
    ):
        build.build_model_for_training(dataclasses.replace(RECIPE, **options))
