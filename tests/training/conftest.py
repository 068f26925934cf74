# SPDX-License-Identifier: Apache-2.0
"""Makes the graphs of short runs quick to build."""

import pytest

from lambdanet.training.data import rand_augment


@pytest.fixture(autouse=True, scope="module")
def plain_graphs_of_runs(plain_graphs):
    """Uses `plain_graphs` in every file of this folder."""


@pytest.fixture
def two_operations(monkeypatch):
    """Lets both policies of RandAugment choose between two operations; each is a part of the graph."""
    two = dict(list(rand_augment.OPERATIONS.items())[:2])
    monkeypatch.setattr(rand_augment, "OPERATIONS", two)
    policy = rand_augment._model_garden().RandAugment
    init = policy.__init__

    def init_with_two(self, *arguments, **options):
        init(self, *arguments, **options)
        self.available_ops = ["Invert", "Color"]

    monkeypatch.setattr(policy, "__init__", init_with_two)
