# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/how-to/own_model_on_tpu.md about `keras.Model.fit` on two CPU devices."""

import functools

import pytest
from engines import ENGINES
from processes import result_of

pytestmark = pytest.mark.weekly
TOLERANCE = 1e-4  # the order of sums in float32, after eight steps


@functools.cache
def _run(engine: str) -> dict:
    return result_of("own_model_on_devices.py", **ENGINES[engine])


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_two_devices_train_as_one(engine):
    result = _run(engine)
    assert result["devices"] == 2
    assert result["moved"] > 0.01
    assert result["weights"] < TOLERANCE
    assert result["metrics"] < TOLERANCE
    assert result["loaded"] < TOLERANCE


def test_jax_steps_per_execution():
    assert _run("jax")["steps"] < TOLERANCE


def test_jax_projections_divided_by_model_parallel():
    result = _run("jax")
    assert result["parts"] == ["keys", "queries", "values"]
    assert result["divided"] < TOLERANCE
    assert result["exported"] < TOLERANCE


def test_tensorflow_answers_for_any_number_of_images():
    assert _run("tensorflow")["answers"] < TOLERANCE
