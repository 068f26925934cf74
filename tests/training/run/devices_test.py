# SPDX-License-Identifier: Apache-2.0
"""Training on two devices, with several steps per execution, and deterministically."""

import types

import keras
import pytest
from processes import result_of
from refusals import refused
from training_runs import ON_TENSORFLOW

from lambdanet import configs
from lambdanet.training.run import devices, loop

# Arguments, and the message; the tests have no TPU.
UNREACHABLE = {
    "tensorflow": [
        ("tpu", None, "tpu must be local on .*, got 'local'; .* \\(.*TPU"),
        (
            "auto",
            "grpc://127.0.0.1:1",
            "tpu must be local on .*, got 'grpc://127.0.0.1:1'; .* \\(.*refused",
        ),
    ],
    "jax": [
        ("tpu", None, "tpu must be local on .*, got 'local'; JAX runs on cpu"),
        ("auto", "grpc://nowhere", "tpu must be local on .*, got 'grpc://nowhere'"),
    ],
}


@ON_TENSORFLOW
def test_several_steps_per_call_need_one_device():
    options = loop.TrainOptions(steps_per_execution=2)
    with refused("must be 1 on several devices .*, got 2"):
        loop.check_steps(configs.get_recipe("digits"), devices.Devices(2), options)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The results of the program, which it prints last."""
    return result_of("train_on_two_devices.py", tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_two_devices_have_the_losses_of_one(result):
    assert result["two"] == pytest.approx(result["one"], rel=1e-4)
    assert result["weights"] < 1e-3
    assert result["sums"] < 1e-6  # of the gradients of parts of a batch


@pytest.mark.slow
def test_run_on_two_devices_resumes_exactly(result):
    assert "stopped by SIGTERM at step 2, which is saved" in result["stopped"]
    assert result["resumed"] == 0


@pytest.mark.slow
def test_moving_averages_are_means_over_devices(result):
    assert result["averages"] < 1e-6


@pytest.mark.slow
def test_deterministic_run_with_steps_per_execution(result):
    assert result["three"] == 0


@ON_TENSORFLOW
def test_indivisible_batch_is_rejected(monkeypatch):
    gpus = [types.SimpleNamespace(name=f"/gpu:{number}") for number in range(3)]
    monkeypatch.setattr("tensorflow.config.list_logical_devices", lambda kind: gpus)
    with refused("global_batch_size must be a multiple of 3, .*=auto, got 64"):
        devices.create_devices("auto", 64)


@pytest.mark.parametrize(
    ("name", "tpu", "message"),
    [
        ("mirored", None, "unknown distribute 'mirored'; did you mean mirrored"),
        (
            "mirrored",
            "local",
            "distribute must be auto or tpu where a tpu is given, got 'mirrored'",
        ),
        *UNREACHABLE[keras.backend.backend()],
    ],
)
def test_devices_that_cannot_be_used(name, tpu, message):
    with refused(message):
        devices.create_devices(name, 8, tpu)
