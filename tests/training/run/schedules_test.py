# SPDX-License-Identifier: Apache-2.0
"""Learning rates, against values by hand."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from lambdanet.errors import InputError
from lambdanet.training.run.schedules import WarmupSchedule


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (1, 0.02),  # 0.1 * 1 / 5
        (4, 0.08),
        (5, 0.1),  # the peak
        # A quarter of the following 20 steps.
        (10, 0.1 * 0.5 * (1 + math.cos(math.pi / 4))),
        (15, 0.05),  # half
        (20, 0.1 * 0.5 * (1 - math.cos(math.pi / 4))),
        (25, 0.0),
        (1000, 0.0),
    ],
)
def test_warmup_then_cosine(step, rate):
    schedule = WarmupSchedule(0.1, total_steps=25, warmup_steps=5)
    assert float(schedule(step)) == pytest.approx(rate, abs=1e-8)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.0), (5, 0.15), (10, 0.3), (99, 0.3), (500, 0.3)]
)
def test_warmup_then_constant(step, rate):
    schedule = WarmupSchedule(0.3, total_steps=100, warmup_steps=10, shape="constant")
    assert float(schedule(step)) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (5, 0.1),
        (15, 0.1 * (1 / 128 + 127 / 256)),
        (25, 0.1 / 128),
        (99, 0.1 / 128),
    ],
)
def test_cosine_ends_at_floor(step, rate):
    schedule = WarmupSchedule(0.1, total_steps=25, warmup_steps=5, floor=1 / 128)
    assert float(schedule(step)) == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (5, 0.05),  # half of the rise
        (10, 0.1),
        (15, 0.1),  # 5 of the 7.5 steps of the first stair
        (17, 0.1),
        (18, 0.099),  # 0.1 * 0.99
        (25, 0.1 * 0.99**2),
        (40, 0.1 * 0.99**4),
        (999, 0.1 * 0.99**4),  # the run is over after step 40
    ],
)
def test_warmup_then_stairs(step, rate):
    schedule = WarmupSchedule(
        0.1, 40, 10, "exponential", decay_rate=0.99, decay_steps=7.5
    )
    assert float(schedule(step)) == pytest.approx(rate, rel=1e-5)


def test_first_step_without_warmup_has_peak():
    assert float(WarmupSchedule(0.4, total_steps=10)(0)) == pytest.approx(0.4)


def test_run_of_only_warmup_ends_below_peak():
    schedule = WarmupSchedule(0.4, total_steps=4, warmup_steps=4)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in range(4)], [0, 0.1, 0.2, 0.3], rtol=1e-6
    )


def test_schedule_in_optimizer_and_serialization():
    schedule = WarmupSchedule(
        0.1, total_steps=25, warmup_steps=5, shape="constant", floor=0.5, decay_rate=0.9
    )
    again = keras.optimizers.schedules.deserialize(
        keras.optimizers.schedules.serialize(schedule)
    )
    assert (
        isinstance(again, WarmupSchedule)
        and again.get_config() == schedule.get_config()
    )
    assert float(again(tf.Variable(2, dtype=tf.int64))) == pytest.approx(0.04)


def test_unknown_shape_is_rejected():
    with pytest.raises(InputError, match="did you mean cosine"):
        WarmupSchedule(0.1, 10, shape="cosin")
