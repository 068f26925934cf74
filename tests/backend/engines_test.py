# SPDX-License-Identifier: Apache-2.0
"""Layers and models on each backend: equal to each other, and to what they were on tf_keras.

`tf_keras.npz` has samples of the arrays that `run_on_engine` computed at the tag `last-with-both-kerases`:
the batch normalizations, dense layers and convolutions of tf_keras are an implementation of their own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import ENGINES, program
from programs import run_on_engine
from samples import load, samples

pytestmark = [pytest.mark.engines, pytest.mark.slow]

TOLERANCE = 1e-5  # of the largest number of an array, or of 1
# Keras 3 averages the biased variance of a batch, tf_keras n / (n - 1) times as much.
VARIANCE, VARIANCE_TOLERANCE = "moving_variance", 0.05
EXPECTED = load(Path(__file__).with_name("tf_keras.npz"))


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """The arrays of each engine, from one process each."""
    folder = tmp_path_factory.mktemp("engines")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = {
        engine: subprocess.Popen(
            [sys.executable, run_on_engine.__file__, folder / f"{engine}.npz"],
            env={**os.environ, **ENGINES[engine]},
            **options,
        )
        for engine in ENGINES
    }
    shown = {engine: process.communicate()[0] for engine, process in processes.items()}
    assert not any(process.returncode for process in processes.values()), shown
    return {engine: dict(np.load(folder / f"{engine}.npz")) for engine in processes}


# Those of `run_on_engine` that tf_keras has computed.
PARTS = [
    (engine, part)
    for engine in ENGINES
    for part in run_on_engine.parts(engine)
    if part not in run_on_engine.NEWER
]


@pytest.mark.parametrize(("engine", "part"), PARTS)
def test_arrays_equal_those_of_tf_keras(engine, part, computed):
    found, expected = (
        {
            name: array
            for name, array in arrays.items()
            if name.partition("/")[0] == part
        }
        for arrays in (computed[engine], EXPECTED)
    )
    assert found.keys() == expected.keys() != set()
    for name, array in expected.items():
        tolerance = VARIANCE_TOLERANCE if VARIANCE in name else TOLERANCE
        scale = max(1, array[0])
        got = samples(found[name])
        np.testing.assert_allclose(
            got / scale, array / scale, rtol=0, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_whole_arrays_equal_those_of_tensorflow(engine, computed):
    """The averages of a batch's variance too, which tf_keras computed otherwise."""
    parts = set(run_on_engine.parts(engine))
    for name, array in computed["tensorflow"].items():
        if name.partition("/")[0] in parts:
            scale = max(1, np.abs(array).max())
            got = computed[engine][name]
            np.testing.assert_allclose(
                got / scale, array / scale, rtol=0, atol=TOLERANCE, err_msg=name
            )


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_pass_the_test_of_keras(engine):
    """On torch also the gradients in float64."""
    environment = {**os.environ, **ENGINES[engine]}
    done = subprocess.run(
        **{**program("keras_tests.py"), "env": environment}, capture_output=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("keras_hub") is None, reason="keras-hub is not installed"
)
@pytest.mark.parametrize(
    ("code", "engine"),
    [
        ("keras_hub_backbone.py", "torch"),
        ("keras_hub_tasks.py", "torch"),
        ("keras_hub_tasks.py", "jax"),
    ],
)
def test_networks_in_keras_hub(code, engine):
    environment = {**os.environ, **ENGINES[engine]}
    done = subprocess.run(**{**program(code), "env": environment}, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_initial_weights_are_the_same_on_each_engine(computed):
    found = [
        {
            name: array
            for name, array in computed[engine].items()
            if name.startswith("initial/")
        }
        for engine in ENGINES
    ]
    # The others are zeros and ones.
    assert sum(array.std() > 0 for array in found[0].values()) > 15
    for weights in found[1:]:
        np.testing.assert_equal(weights, found[0])
