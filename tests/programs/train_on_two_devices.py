# SPDX-License-Identifier: Apache-2.0
"""Trains on one device, in several steps per execution, and on two devices; prints the differences as JSON.

Float32, no dropout, and batch statistics over all devices: only the order of sums differs.
"""

import dataclasses
import json
import sys

import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

from quick_graphs import trace_quickly  # noqa: E402
from small_model import ONE_BLOCK  # noqa: E402

from lambdanet import configs  # noqa: E402
from lambdanet.models import zoo  # noqa: E402
from lambdanet.training.run import callbacks, model_dir  # noqa: E402
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
)


def run(name, **how):
    train(recipe, f"{folder}/{name}", folder, **how)
    losses = [
        [float(row["loss"]), float(row["val_loss"])]
        for row in callbacks.read_history(model_dir.Path(f"{folder}/{name}/history.csv"))
    ]
    return losses, model_dir.load_trained_model(f"{folder}/{name}")[0].get_weights()


def distance(left, right):
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


one, one_weights = run("one", distribute="one_device", deterministic=True)
three, three_weights = run("three", distribute="one_device", deterministic=True, steps_per_execution=3)
two, two_weights = run("two", distribute="mirrored")
print(
    json.dumps(
        {
            "one": one,
            "two": two,
            "weights": distance(one_weights, two_weights),
            "three": distance(one_weights, three_weights),
        }
    )
)
