# SPDX-License-Identifier: Apache-2.0
"""Tests of the benchmarks of models."""

import keras
import numpy as np
import pytest
from programs.small_model import one_convolution

from benchmarks.interleaved import model_contenders
from benchmarks.interleaved.cases import ModelCase
from benchmarks.interleaved.model_contenders import Network


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet_50", ("resnet_50", {}, 0)),
        (
            "resnet_50_clll:scope=None,key_dim=4@96",
            ("resnet_50_clll", {"scope": None, "key_dim": 4}, 96),
        ),
    ],
)
def test_parse_network_with_options_and_size(text, expected):
    network = Network.parse(text)
    assert (network.name, network.options, network.size) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_training_changes_weights(monkeypatch, dtype):
    built = []

    def create(*args, **kwargs):
        built.append(one_convolution(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(model_contenders.zoo, "create_model", create)
    for backward in (False, True):
        run = model_contenders.build(
            "model/resnet_50@16", ModelCase(4, backward, dtype)
        )
        before = built[-1].get_weights()
        run()
        changed = [
            not np.array_equal(a, b)
            for a, b in zip(before, built[-1].get_weights(), strict=True)
        ]
        assert any(changed) == backward
    assert all(changed[:2])  # kernel and bias of the convolution
    assert built[-1].input_shape == (None, 16, 16, 3)
    assert built[-1].layers[1].compute_dtype == dtype
    assert keras.mixed_precision.global_policy().name == "float32"
