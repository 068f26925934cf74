# SPDX-License-Identifier: Apache-2.0
"""The average of ScheduleFreeAdamW, which a run evaluates, keeps and exports, against its formulas."""

import dataclasses

import keras
import numpy as np
import pytest
from refusals import refused

from lambdanet import configs
from lambdanet.training.run.build import build_optimizer
from lambdanet.training.run.checkpoints import (
    AVERAGE,
    AveragedEvaluation,
    Checkpoints,
    read_newest,
)
from lambdanet.training.run.train_step import average_weights

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    optimizer="ScheduleFreeAdamW",
    schedule="constant",
    warmup_epochs=0,
    learning_rate=0.3,
    weight_decay=0.02,
)
STEPS = 7


def test_evaluation_and_checkpoints_have_the_average(tmp_path):
    """Algorithm 1 of Defazio et al. (2024), of which y is trained and x is the average of z."""
    random = np.random.default_rng(0)
    images = random.normal(size=[8, 3])
    targets = random.normal(size=[8, 2])
    inputs = keras.Input([3])
    layer = keras.layers.Dense(2, use_bias=False, name="layer")
    outputs = keras.layers.BatchNormalization(trainable=False, name="norm")(
        layer(inputs)
    )
    model = keras.Model(inputs, outputs)
    y = x = z = layer.kernel.numpy().astype(np.float64)
    v = 0.0
    scale = 1 / np.sqrt(1 + 1e-3)  # of the normalization, which is not trained
    for step in range(1, STEPS + 1):
        g = scale * 2 / 16 * images.T @ (scale * images @ y - targets)
        v = 0.999 * v + 0.001 * g**2
        z = z - 0.3 * (g / (np.sqrt(v / (1 - 0.999**step)) + 1e-8) + 0.02 * y)
        x = (1 - 1 / step) * x + z / step
        y = 0.1 * z + 0.9 * x
    optimizer = build_optimizer(RECIPE, model.weights, steps_per_epoch=10)
    model.compile(optimizer, loss="mse")
    model.train_step = average_weights(model)
    checkpoints = Checkpoints(tmp_path / "checkpoints", model, optimizer)
    model.fit(images, targets, batch_size=8, epochs=STEPS, verbose=0)
    np.testing.assert_allclose(layer.kernel.numpy(), y, atol=1e-4)
    assert np.abs(x - y).max() > 0.02
    callbacks = [AveragedEvaluation(checkpoints)]
    found = model.evaluate(images, targets, callbacks=callbacks, verbose=0)
    expected = np.mean((scale * images @ x - targets) ** 2)
    assert found == pytest.approx(expected, rel=1e-3)
    checkpoints.save(STEPS)
    _, arrays = read_newest(checkpoints.directory)
    np.testing.assert_allclose(arrays[f"{AVERAGE}layer/kernel"], x, atol=1e-4)
    np.testing.assert_array_equal(arrays[f"{AVERAGE}norm/moving_variance"], 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 0.0}, "momentum must be above 0 with schedulefreeadamw, got 0"),
        ({"schedule": "cosine"}, "schedule must be constant with schedulefreeadamw, "),
        ({"ema_decay": 0.9}, "ema_decay must be 0 with schedulefreeadamw, "),
    ],
)
def test_what_takes_the_place_of_the_average_is_refused(changes, message):
    with refused(message):
        dataclasses.replace(RECIPE, **changes)
    assert RECIPE.keeps_averages
