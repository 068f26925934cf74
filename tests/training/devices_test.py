# SPDX-License-Identifier: Apache-2.0
"""Two devices train as one does, several steps run as one, and a deterministic run repeats to the bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lambdanet.errors import InputError
from lambdanet.training.run import devices

# Float32, no dropout, and statistics of the whole batch: only the order of sums differs between devices.
PROGRAM = """
import dataclasses, json, sys
import numpy as np
import tensorflow as tf

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from lambdanet import configs
from lambdanet.training.run import callbacks, model_dir
from lambdanet.training.train import train

folder = sys.argv[1]
recipe = dataclasses.replace(
    configs.get_recipe("digits"), epochs=2, train_split="train[:64]", eval_split="test[:21]",
    global_batch_size=16, sync_batch_norm=True, ema_decay=0.5, learning_rate=0.01,
)

def run(name, **how):
    train(recipe, f"{folder}/{name}", folder, **how)
    losses = [[float(row["loss"]), float(row["val_loss"])]
              for row in callbacks.read_history(model_dir.Path(f"{folder}/{name}/history.csv"))]
    return losses, model_dir.load_trained_model(f"{folder}/{name}")[0].get_weights()

def distance(left, right):
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))

one, one_weights = run("one", distribute="one_device", deterministic=True)
three, three_weights = run("three", distribute="one_device", deterministic=True, steps_per_execution=3)
two, two_weights = run("two", distribute="mirrored")
print(json.dumps({
    "one": one, "two": two, "weights": distance(one_weights, two_weights),
    "three": distance(one_weights, three_weights),
}))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_two_devices_have_the_losses_of_one(shown):
    result = json.loads(shown.splitlines()[-1])
    for one, two in zip(result["one"], result["two"], strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    assert result["weights"] < 1e-3


def test_it_says_how_a_batch_is_divided(shown):
    rate = "in float32; the learning rate rises to 0.01"
    assert f"batches of 16 images, 8 on each of 2 devices, {rate}\n" in shown
    assert f"batches of 16 images, {rate}\n" in shown


def test_a_deterministic_run_repeats_to_the_bit_also_with_several_steps_in_one_execution(shown):
    assert json.loads(shown.splitlines()[-1])["three"] == 0


def test_an_unknown_choice_is_refused():
    with pytest.raises(InputError, match="unknown distribute 'mirored'; did you mean mirrored"):
        devices.create_devices("mirored", 8)


def test_a_batch_that_cannot_be_divided_is_refused(monkeypatch):
    gpus = [type("Device", (), {"name": f"/gpu:{number}"}) for number in range(3)]
    monkeypatch.setattr("tensorflow.config.list_logical_devices", lambda kind: gpus)
    with pytest.raises(InputError, match="global_batch_size must be a multiple of 3, .*=auto, got 64"):
        devices.create_devices("auto", 64)


@pytest.mark.parametrize(
    ("name", "tpu", "reason"),
    [
        ("tpu", None, "'local'; .* \\(.*TPU"),  # no TPU is at hand where tests run
        ("auto", "grpc://127.0.0.1:1", "'grpc://127.0.0.1:1'; .* \\(.*refused"),
        ("tpu", "grpc://nowhere", "'grpc://nowhere'; .* \\("),
    ],
)
def test_a_tpu_that_cannot_be_reached_is_told_in_one_line(name, tpu, reason):
    with pytest.raises(InputError, match=f"tpu must be local on .*, got {reason}") as error:
        devices.create_devices(name, 8, tpu)
    assert "\n" not in str(error.value)


def test_a_tpu_and_another_choice_contradict_each_other():
    message = "distribute must be auto or tpu where a tpu is given, got 'mirrored'"
    with pytest.raises(InputError, match=message):
        devices.create_devices("mirrored", 8, "local")
