# SPDX-License-Identifier: Apache-2.0
"""Leaves the graphs of short runs as traced."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def plain_graphs_of_runs(plain_graphs):
    """Uses `plain_graphs` in every file of this folder."""
