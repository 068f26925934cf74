# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/how-to/own_model_on_tpu.md about `keras.Model.fit` on two CPU devices."""

import json
import subprocess

import pytest
from helpers import ENGINES, program

pytestmark = pytest.mark.slow
PROGRAM = "own_model_on_devices.py"
TOLERANCE = 1e-4  # the order of sums in float32, after eight steps


def _result(engine: str, *arguments: str) -> dict:
    """Returns what the program prints last."""
    command = program(PROGRAM, *arguments)
    command["env"] |= ENGINES[engine]
    done = subprocess.run(**command, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def jax():
    return _result("jax")


@pytest.fixture(scope="module")
def tensorflow():
    return _result("tensorflow")


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_two_devices_train_as_one(engine, request):
    result = request.getfixturevalue(engine)
    assert result["devices"] == 2
    assert result["moved"] > 0.01
    assert result["weights"] < TOLERANCE
    assert result["metrics"] < TOLERANCE


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_saved_model_has_the_same_outputs(engine, request):
    assert request.getfixturevalue(engine)["loaded"] < TOLERANCE


def test_jax_steps_per_execution(jax):
    assert jax["steps"] < TOLERANCE


def test_jax_projections_divided_by_model_parallel(jax):
    assert jax["parts"] == ["keys", "queries", "values"]
    assert jax["divided"] < TOLERANCE
    assert jax["exported"] < TOLERANCE


def test_jax_refuses_an_uneven_batch(jax):
    assert jax["uneven"] == "IndivisibleError"


def test_tensorflow_answers_for_any_number_of_images(tensorflow):
    assert tensorflow["answers"] < TOLERANCE


def test_tensorflow_weights_of_an_uneven_batch_differ(tensorflow):
    assert tensorflow["uneven"] > 10 * TOLERANCE


def test_tensorflow_moving_averages_are_of_the_first_device(tensorflow):
    first, second = tensorflow["averages"]
    assert first == 0
    assert second > TOLERANCE


def test_tensorflow_devices_drop_the_same(tensorflow):
    assert tensorflow["masks"] == 0


@pytest.mark.rest  # needs tf_keras
def test_tf_keras_takes_several_steps_per_execution():
    result = _result("tensorflow", "tf_keras")
    assert sorted(result) == ["1", "2"]
    assert max(result.values()) < TOLERANCE


@pytest.mark.parametrize("name", ["outside", "steps", "xla"])
def test_limit_of_keras_on_tensorflow(name, tensorflow):
    """When one of them works, the page has to say so."""
    assert tensorflow[name].endswith("Error")
