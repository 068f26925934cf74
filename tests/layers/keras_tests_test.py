# SPDX-License-Identifier: Apache-2.0
"""Keras's own test of its layers on every layer of the library, on each backend of Keras 3."""

import subprocess

import helpers
import pytest


@pytest.mark.parametrize("engine", helpers.ENGINES)
def test_layers_pass_the_test_of_keras(engine):
    """On torch also the gradients in float64."""
    program = helpers.program("keras_tests.py")
    program["env"] |= helpers.ENGINES[engine]
    program["env"].pop("TF_USE_LEGACY_KERAS", None)
    done = subprocess.run(**program, capture_output=True)
    assert done.returncode == 0, done.stderr
