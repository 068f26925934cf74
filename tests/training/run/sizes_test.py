# SPDX-License-Identifier: Apache-2.0
"""Progressive resizing: the size in each epoch, and networks without it; its run is in freezing_test."""

import dataclasses

import pytest
from refusals import refused

from lambdanet import configs
from lambdanet.training.run import build

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    epochs=2,
    warmup_epochs=1,
    input_size=16,
    sizes=(12, 20),
)


def test_epochs_are_divided_between_sizes():
    recipe = dataclasses.replace(RECIPE, epochs=10, sizes=(8, 12, 16))
    assert recipe.phase_ends == (3, 7, 10)
    sizes = [recipe.training_size(epoch) for epoch in (0, 2, 3, 6, 7, 9)]
    assert sizes == [8, 8, 12, 12, 16, 16]
    frozen = dataclasses.replace(
        recipe, start_from="x", freeze="backbone", unfreeze_epoch=5
    )
    assert frozen.phase_ends == (3, 5, 7, 10)
    plain = dataclasses.replace(RECIPE, sizes=())
    assert plain.phase_ends == (2,)
    assert plain.training_size(1) == 16


@pytest.mark.parametrize(
    "sizes", [(0,), (8.5,), (float("inf"),), (float("nan"),), (8, 9, 10)]
)
def test_sizes_that_cannot_be_used(sizes):
    with refused("sizes must be (integers|at most epochs)"):
        dataclasses.replace(RECIPE, sizes=sizes)


def test_network_with_global_scope_is_rejected(one_block):
    options = {"model_options": {"scope": None}, "sizes": (32, 64), "input_size": 64}
    with refused(
        "sizes must be empty for lambda_resnet_tiny, which has weights that depend"
    ):
        build.build_resizable_model(dataclasses.replace(RECIPE, **options))
