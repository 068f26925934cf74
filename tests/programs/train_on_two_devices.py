# SPDX-License-Identifier: Apache-2.0
"""Trains on one device, in several steps per execution, and on two devices; prints the differences as JSON.

Float32, no dropout, and batch statistics over all devices: only the order of sums differs. With dropout, a
run on two devices is stopped and continued, and equals one that was not.
"""

import dataclasses
import json
import pathlib
import signal
import sys

import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)

from quick_graphs import trace_quickly  # noqa: E402
from small_model import ONE_BLOCK, plain_model  # noqa: E402

from lambdanet import configs  # noqa: E402
from lambdanet.errors import Preempted  # noqa: E402
from lambdanet.models import zoo  # noqa: E402
from lambdanet.training.run import callbacks, history, model_dir  # noqa: E402
from lambdanet.training.train import train  # noqa: E402

folder = sys.argv[1]
zoo.MODELS["lambda_resnet_tiny"] = ONE_BLOCK
trace_quickly()
recipe = dataclasses.replace(
    configs.get_recipe("digits"),
    epochs=2,
    train_split="train[:64]",
    eval_split="test[:21]",
    global_batch_size=16,
    input_size=16,
    sync_batch_norm=True,
    ema_decay=0.5,
    learning_rate=0.01,
    clip_norm=0.5,
    clip_adaptive=0.05,
)


def run(name, recipe=recipe, **how):
    train(recipe, f"{folder}/{name}", folder, **how)
    rows = history.read_history(pathlib.Path(f"{folder}/{name}/history.csv"))
    losses = [[float(row["loss"]), float(row["val_loss"])] for row in rows]
    return losses, model_dir.load_weights(f"{folder}/{name}")[1]


def distance(left, right):
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


one, one_weights = run("one", distribute="one_device", deterministic=True)
three, three_weights = run(
    "three", distribute="one_device", deterministic=True, steps_per_execution=3
)
two, two_weights = run("two", distribute="mirrored")

random = dataclasses.replace(recipe, dropout_rate=0.3, stochastic_depth_rate=0.3)
_, whole_weights = run("whole", random, distribute="mirrored")
save = callbacks.SaveCheckpoints.on_train_batch_end


def stop(self, batch, logs=None):
    if batch == 1:
        signal.raise_signal(signal.SIGTERM)
    save(self, batch, logs)


callbacks.SaveCheckpoints.on_train_batch_end = stop
try:
    run("resumed", random, distribute="mirrored")
except Preempted as error:
    stopped = str(error)
callbacks.SaveCheckpoints.on_train_batch_end = save
_, resumed_weights = run("resumed", random, distribute="mirrored")

# The mean of a batch is that of the means of its halves, while the weights before it do not move.
local = dataclasses.replace(recipe, epochs=1, sync_batch_norm=False, learning_rate=1e-9)
_, one_averages = run("one_local", local, distribute="one_device")
_, two_averages = run("two_local", local, distribute="mirrored")
first_mean = next(name for name in one_averages if name.endswith("moving_mean"))

# Parts of a batch have other batch statistics on two devices.
zoo.create_model = plain_model
parts = dataclasses.replace(recipe, accumulate_steps=2, epochs=1, sync_batch_norm=False)
_, one_sums = run("one_sums", parts, distribute="one_device")
_, two_sums = run("two_sums", parts, distribute="mirrored")

differences = {
    "weights": distance(one_weights, two_weights),
    "three": distance(one_weights, three_weights),
    "sums": distance(one_sums, two_sums),
    "resumed": distance(whole_weights, resumed_weights),
    "averages": distance({first_mean: one_averages[first_mean]}, two_averages),
}
print(json.dumps({"one": one, "two": two, "stopped": stopped, **differences}))
