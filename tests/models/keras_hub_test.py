# SPDX-License-Identifier: Apache-2.0
"""Networks of the zoo as backbones of KerasHub."""

import importlib.util
import subprocess

import helpers
import pytest


@pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed")
def test_backbone(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    shown = subprocess.run(**helpers.program("keras_hub_backbone.py"), capture_output=True)
    assert shown.returncode == 0, shown.stderr
