# SPDX-License-Identifier: Apache-2.0
"""Layers and models on Keras 3, on each of its backends: equal to those on tf_keras."""

import os
import subprocess
import sys

import numpy as np
import pytest
from programs import run_on_engine
from source_tree import ROOT

from lambdanet.models.weights import weight_files

ENGINES = {
    "jax": {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    "torch": {"KERAS_BACKEND": "torch"},
    "tensorflow": {"LAMBDANET_KERAS": "keras", "KERAS_BACKEND": "tensorflow"},
}
TOLERANCE = 1e-5  # of the largest number of an array, or of 1
# Keras 3 averages the biased variance of a batch, tf_keras n / (n - 1) times as much.
VARIANCE, VARIANCE_TOLERANCE = "moving_variance", 0.05


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of weights, and one of arrays for each engine, from processes that run at the same time."""
    folder = tmp_path_factory.mktemp("engines")
    weight_files.save(run_on_engine.small_model(), folder / "weights.safetensors")
    program = [sys.executable, run_on_engine.__file__, folder / "weights.safetensors"]
    inherited = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    processes = {
        engine: subprocess.Popen(
            [*program, folder / f"{engine}.npz"],
            env={**inherited, "PYTHONPATH": path, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for engine, variables in ENGINES.items()
    }
    shown = {engine: process.communicate()[0] for engine, process in processes.items()}
    assert {engine: process.returncode for engine, process in processes.items()} == dict.fromkeys(
        ENGINES, 0
    ), shown
    return folder


@pytest.fixture(scope="module")
def expected(files):
    return run_on_engine.arrays(str(files / "weights.safetensors"))


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_equal_those_of_tf_keras(engine, files, expected):
    found = np.load(files / f"{engine}.npz")
    assert set(found) == expected.keys()
    for name, array in expected.items():
        tolerance = VARIANCE_TOLERANCE if VARIANCE in name else TOLERANCE
        scale = max(1, np.abs(array).max())
        np.testing.assert_allclose(found[name] / scale, array / scale, rtol=0, atol=tolerance, err_msg=name)
