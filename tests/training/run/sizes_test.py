# SPDX-License-Identifier: Apache-2.0
"""Training at another size than evaluation, and networks without it; its run is in freezing_test."""

import dataclasses

import pytest
from refusals import refused
from training_runs import recipe_with

from lambdanet.training.run import build

RECIPE = recipe_with("digits", epochs=2, input_size=16, sizes=(12,))


@pytest.mark.parametrize("sizes", [(0,), (8.5,), (8, 9)])
def test_sizes_that_cannot_be_used(sizes):
    with refused("sizes must be (integers|at most one number)"):
        dataclasses.replace(RECIPE, sizes=sizes)


def test_network_with_global_scope_is_rejected(one_block):
    options = {"model_options": {"scope": None}, "sizes": (32,), "input_size": 64}
    with refused(
        "sizes must be empty for lambda_resnet_tiny, which has weights that depend"
    ):
        build.build_model_for_training(dataclasses.replace(RECIPE, **options))
