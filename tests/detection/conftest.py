# SPDX-License-Identifier: Apache-2.0
"""Quickly traced graphs of Model Garden's models."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_graphs_of_detectors(quick_graphs):
    """Uses `quick_graphs` in every file of this folder."""
