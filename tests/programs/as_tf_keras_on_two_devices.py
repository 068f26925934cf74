# SPDX-License-Identifier: Apache-2.0
"""Trains a Keras 3 network by tf_keras on two logical devices: python as_tf_keras_on_two_devices.py

Prints a JSON object on the last line.
"""

import json
import tempfile
from pathlib import Path

import tensorflow as tf
import two_devices

two_devices.divide_cpu()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tf_keras  # noqa: E402
from small_model import TWO_BLOCKS  # noqa: E402

import lambdanet  # noqa: E402
from lambdanet.core.errors import InputError  # noqa: E402
from lambdanet.models import zoo  # noqa: E402

NAME = "lambda_resnet_tiny"
IMAGES = np.random.default_rng(0).normal(size=[16, 32, 32, 3]).astype("float32")
LABELS = np.arange(16) % 4


def build() -> keras.Model:
    return lambdanet.create_model(
        NAME, num_classes=4, input_size=32, stochastic_depth_rate=0.2
    )


def compiled(strategy: tf.distribute.Strategy) -> tf_keras.Model:
    with strategy.scope():
        model = lambdanet.as_tf_keras(build)
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.SGD(0.05, momentum=0.9), loss)
    return model


def seed_differences(model: tf_keras.Model) -> list[int]:
    """Returns how far the first seed of each device is from that of the first one."""
    state = next(
        variable.value
        for variable in model.network.variables
        if "seed_generator" in variable.path
    )
    seeds = [int(part.numpy()[0]) for part in state.values]
    return [(seed - seeds[0]) % 2**32 for seed in seeds]


def main() -> None:
    zoo.MODELS[NAME] = TWO_BLOCKS
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    refused = ""
    with strategy.scope():
        try:
            lambdanet.as_tf_keras(build())
        except InputError as error:
            refused = str(error)
    model = compiled(strategy)
    seeds = [seed_differences(model)]
    model.fit(IMAGES, LABELS, batch_size=16, epochs=1, verbose=0)
    moving = {
        f"{v.synchronization.name} {v.aggregation.name}"
        for v in model.non_trainable_weights
        if "moving" in v.name
    }
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=model).save(str(Path(folder, "ckpt")))
        other = compiled(strategy)
        with strategy.scope():
            tf.train.Checkpoint(model=other).restore(
                path
            ).assert_existing_objects_matched()
            other.draw_different_numbers()
    seeds.append(seed_differences(other))
    result = {
        "refused": refused,
        "synchronization": sorted(moving),
        "seeds": seeds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
