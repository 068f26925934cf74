# SPDX-License-Identifier: Apache-2.0
"""Layers and models on Keras 3, on each of its backends: equal to those on tf_keras."""

import os
import subprocess
import sys

import numpy as np
import pytest
from programs import run_on_engine
from source_tree import ROOT

ENGINES = {
    "jax": {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # half the time to compile
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    },
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
    run_on_engine.write_weights(folder)
    program = [sys.executable, run_on_engine.__file__, folder]
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
    return run_on_engine.arrays(files, run_on_engine.NETWORKS)


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_equal_those_of_tf_keras(engine, files, expected):
    found = np.load(files / f"{engine}.npz")
    others = set(run_on_engine.NETWORKS) - set(run_on_engine.NETWORKS_ON[engine])
    names = [name for name in expected if name.partition("/")[0] not in others]
    assert set(found) == set(names)
    for name in names:
        array = expected[name]
        tolerance = VARIANCE_TOLERANCE if VARIANCE in name else TOLERANCE
        scale = max(1, np.abs(array).max())
        np.testing.assert_allclose(found[name] / scale, array / scale, rtol=0, atol=tolerance, err_msg=name)
