# SPDX-License-Identifier: Apache-2.0
"""Trains on one device and on two, and in several steps per execution; prints the differences as JSON.

Float32, no dropout, and batch statistics over all devices: only the order of sums differs. With dropout, a
run on two devices is stopped and continued, and equals one that was not.
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np
import pytest
import two_devices

two_devices.divide_cpu()

from quick_graphs import trace_quickly  # noqa: E402
from small_model import ONE_BLOCK, plain_model, small_model  # noqa: E402
from training_runs import act_at, send_sigterm  # noqa: E402

from lambdanet import configs  # noqa: E402
from lambdanet.core.errors import Preempted  # noqa: E402
from lambdanet.models import zoo  # noqa: E402
from lambdanet.training.run import logs, model_dir  # noqa: E402
from lambdanet.training.train import train  # noqa: E402

folder = pathlib.Path(sys.argv[1])
zoo.MODELS["lambda_resnet_tiny"] = ONE_BLOCK
trace_quickly()
recipe = dataclasses.replace(
    configs.get_recipe("digits"),
    epochs=1,
    train_split="train[:64]",
    eval_split="test[:21]",
    global_batch_size=16,
    input_size=16,
    augmentation="none",
    sync_batch_norm=True,
    ema_decay=0.5,
    learning_rate=0.01,
    clip_norm=0.5,
    clip_adaptive=0.05,
)


def run(name, recipe, distribute="one_device", **options):
    train(recipe, folder / name, str(folder), distribute=distribute, **options)
    return model_dir.load_weights(folder / name)[1]


def losses(name):
    (row,) = logs.read_history(folder / name / "history.csv")
    return [float(row[column]) for column in ("loss", "val_loss")]


def distance(left, right):
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


one = run("one", recipe)
two = run("two", recipe, "mirrored")

# The mean of a batch is that of the means of its halves: of the pictures, in the first layer.
zoo.create_model = small_model
local = dataclasses.replace(recipe, train_split="train[:16]", sync_batch_norm=False)
one_local = run("one_local", local)
two_local = run("two_local", local, "mirrored")
first_mean = next(name for name in one_local if name.endswith("moving_mean"))

# Parts of a batch have other batch statistics on two devices.
zoo.create_model = plain_model
parts = dataclasses.replace(recipe, accumulate_steps=2, sync_batch_norm=False)
one_sums = run("one_sums", parts, deterministic=True)
three = run("three", parts, deterministic=True, steps_per_execution=3)
two_sums = run("two_sums", parts, "mirrored")

random = dataclasses.replace(recipe, dropout_rate=0.3)
whole = run("whole", random, "mirrored")
with pytest.MonkeyPatch.context() as patch:
    act_at(patch, [2], send_sigterm)
    try:
        run("resumed", random, "mirrored")
    except Preempted as error:
        stopped = str(error)
resumed = run("resumed", random, "mirrored")

differences = {
    "weights": distance(one, two),
    "averages": distance({first_mean: one_local[first_mean]}, two_local),
    "sums": distance(one_sums, two_sums),
    "three": distance(one_sums, three),
    "resumed": distance(whole, resumed),
}
print(
    json.dumps(
        {"one": losses("one"), "two": losses("two"), "stopped": stopped, **differences}
    )
)
