# SPDX-License-Identifier: Apache-2.0
"""Layers and models on the backend of this process: equal to what `engines.npz` has of TensorFlow.

Runs on each engine: see `run_on_engine`, whose arrays these are.
"""

import importlib
import importlib.util
import unittest
from pathlib import Path

import numpy as np
import pytest
from processes import output_of
from programs import run_on_engine
from samples import load, samples

from lambdanet import backend as K

TOLERANCE = 1e-5  # of the largest number of an array, or of 1
EXPECTED = load(Path(__file__).with_name("engines.npz"))
# The networks that are not compared each day.
WEEKLY = run_on_engine.NETWORKS[1:]
# On which each operation is compiled, and `training` has tests besides.
WEEKLY_ON_JAX = [pytest.mark.weekly] if K.ENGINE == "jax" else []


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=[pytest.mark.weekly] if part in WEEKLY else [])
        for part in run_on_engine.PARTS
    ],
)
@pytest.mark.skipif(K.ENGINE == "tensorflow", reason="the file has TensorFlow's")
@pytest.mark.slow
def test_arrays_equal_those_of_tensorflow(part):
    found = run_on_engine.arrays(part)
    names = {f"{part}/{name}" for name in found}
    assert names == {name for name in EXPECTED if name.partition("/")[0] == part}
    for name, array in found.items():
        expected = EXPECTED[f"{part}/{name}"]
        scale = max(1, expected[0])
        np.testing.assert_allclose(
            samples(array) / scale,
            expected / scale,
            rtol=0,
            atol=TOLERANCE,
            err_msg=name,
        )


# Keras's test trains with generators, and layers without weights.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("module", [pytest.param("keras_tests", marks=WEEKLY_ON_JAX)])
def test_layers_pass_the_test_of_keras(module):
    keras_tests = importlib.import_module(f"programs.{module}")
    keras_tests.check_every_class_is_tested()
    found = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(keras_tests).run(found)
    assert found.testsRun > 2
    assert found.wasSuccessful(), [text for _, text in found.errors + found.failures]


@pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed"
)
@pytest.mark.skipif(K.ENGINE == "tensorflow", reason="KerasHub's own engine")
@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("keras_hub_backbone.py", marks=pytest.mark.weekly),
        pytest.param("keras_hub_tasks.py", marks=WEEKLY_ON_JAX),
    ],
)
def test_networks_in_keras_hub(code):
    """In a process of its own, which imports KerasHub first."""
    output_of(code)
