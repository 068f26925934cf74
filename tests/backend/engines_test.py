# SPDX-License-Identifier: Apache-2.0
"""Layers and models on Keras 3, on each of its backends: equal to those on tf_keras."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers import ENGINES, program
from programs import run_on_engine

TOLERANCE = 1e-5  # of the largest number of an array, or of 1
# Keras 3 averages the biased variance of a batch, tf_keras n / (n - 1) times as much.
VARIANCE, VARIANCE_TOLERANCE = "moving_variance", 0.05


def environment(engine):
    inherited = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return {**inherited, **ENGINES[engine]}


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The arrays of each engine, from processes that run at the same time, and those of tf_keras."""
    folder = tmp_path_factory.mktemp("engines")
    run_on_engine.write_weights(folder)
    command = [sys.executable, run_on_engine.__file__, folder]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = {
        engine: subprocess.Popen([*command, folder / f"{engine}.npz"], env=environment(engine), **options)
        for engine in ENGINES
    }
    expected = run_on_engine.arrays(folder, run_on_engine.NETWORKS)
    shown = {engine: process.communicate()[0] for engine, process in processes.items()}
    assert not any(process.returncode for process in processes.values()), shown
    return {engine: dict(np.load(folder / f"{engine}.npz")) for engine in ENGINES} | {"tf_keras": expected}


PARTS = [(engine, part) for engine in ENGINES for part in run_on_engine.parts(engine)]


@pytest.mark.parametrize(("engine", "part"), PARTS)
def test_arrays_equal_those_of_tf_keras(engine, part, computed):
    found, expected = (
        {name: array for name, array in computed[key].items() if name.partition("/")[0] == part}
        for key in (engine, "tf_keras")
    )
    assert found.keys() == expected.keys() != set()
    for name, array in expected.items():
        tolerance = VARIANCE_TOLERANCE if VARIANCE in name else TOLERANCE
        scale = max(1, np.abs(array).max())
        np.testing.assert_allclose(found[name] / scale, array / scale, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_pass_the_test_of_keras(engine):
    """On torch also the gradients in float64."""
    done = subprocess.run(**{**program("keras_tests.py"), "env": environment(engine)}, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed")
def test_backbone_of_keras_hub(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    shown = subprocess.run(**program("keras_hub_backbone.py"), capture_output=True)
    assert shown.returncode == 0, shown.stderr


def test_initial_weights_are_the_same_on_each_engine(computed):
    found = [
        {name: array for name, array in computed[engine].items() if name.startswith("initial/")}
        for engine in ENGINES
    ]
    assert sum(array.std() > 0 for array in found[0].values()) > 15  # the others are zeros and ones
    for weights in found[1:]:
        np.testing.assert_equal(weights, found[0])
