# SPDX-License-Identifier: Apache-2.0
"""Learning rates, against values by hand."""

import math

import keras
import pytest
import tensorflow as tf
from refusals import refused

from lambdanet.training.run.build import WarmupSchedule

COSINE = {"peak": 0.1, "total_steps": 25, "warmup_steps": 5}
FLOOR = {**COSINE, "floor": 1 / 128}
CONSTANT = {"peak": 0.3, "total_steps": 100, "warmup_steps": 10, "shape": "constant"}
STAIRS = {
    "peak": 0.1,
    "total_steps": 40,
    "warmup_steps": 10,
    "shape": "exponential",
    "decay_rate": 0.99,
    "decay_steps": 7.5,
}
ONLY_WARMUP = {"peak": 0.4, "total_steps": 4, "warmup_steps": 4}


@pytest.mark.parametrize(
    ("schedule", "step", "rate"),
    [
        (COSINE, 0, 0.0),
        (COSINE, 1, 0.02),  # 0.1 * 1 / 5
        (COSINE, 5, 0.1),  # the peak
        # A quarter of the following 20 steps.
        (COSINE, 10, 0.05 * (1 + math.cos(math.pi / 4))),
        (COSINE, 1000, 0.0),
        (FLOOR, 99, 0.1 / 128),
        (CONSTANT, 5, 0.15),
        (CONSTANT, 500, 0.3),
        (STAIRS, 17, 0.1),  # 7 of the 7.5 steps of the first stair
        (STAIRS, 18, 0.099),  # 0.1 * 0.99
        (STAIRS, 999, 0.1 * 0.99**4),  # the run is over after step 40
        ({"peak": 0.4, "total_steps": 10}, 0, 0.4),
        # Ends below the peak.
        (ONLY_WARMUP, 3, 0.3),
    ],
)
def test_rate_of_a_step(schedule, step, rate):
    assert float(WarmupSchedule(**schedule)(step)) == pytest.approx(
        rate, rel=1e-5, abs=1e-8
    )


def test_schedule_in_optimizer_and_serialization():
    schedule = WarmupSchedule(
        0.1, total_steps=25, warmup_steps=5, shape="constant", floor=0.5, decay_rate=0.9
    )
    serialized = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(serialized)
    assert isinstance(again, WarmupSchedule)
    assert again.get_config() == schedule.get_config()
    assert float(again(tf.Variable(2, dtype=tf.int64))) == pytest.approx(0.04)


def test_unknown_shape_is_rejected():
    with refused("did you mean cosine"):
        WarmupSchedule(0.1, 10, shape="cosin")
