# SPDX-License-Identifier: Apache-2.0
"""The temperature of logits, and the split that decides it."""

import dataclasses
from functools import partial

import keras
import numpy as np
import pytest
from helpers import write_picture
from refusals import refused
from scipy.stats import entropy
from training_runs import IN_FOLDERS

from lambdanet.training import calibration, evaluate
from lambdanet.training.run import model_dir


def draw_logits():
    """Returns logits [400, 4], and labels that are drawn by their softmax."""
    random = np.random.default_rng(0)
    logits = random.normal(size=[400, 4]) * 2
    labels = np.argmax(logits + random.gumbel(size=logits.shape), axis=-1)
    return logits, labels


@pytest.mark.parametrize("factor", [0.05, 5, 30])
def test_temperature_scales_with_logits(factor):
    """Of a model that is too sure, as usual, it is above 1."""
    logits, labels = draw_logits()
    expected = calibration.fit_temperature(logits, labels)
    assert expected == pytest.approx(1, abs=0.2)
    found = calibration.fit_temperature(factor * logits, labels)
    assert found == pytest.approx(factor * expected)


def test_temperature_without_an_answer_is_refused():
    logits, labels = draw_logits()
    with refused("no temperature fits 400 images of which the model"):
        calibration.fit_temperature(logits, logits.argmax(-1))
    with refused("or none better than by chance"):
        calibration.fit_temperature(-logits, labels)


@pytest.mark.parametrize("held_out", ["held", ""])
def test_held_out_split_decides_the_temperature(held_out, tmp_path, capsys):
    """Gray pictures, whose logits are their level and 0; in one split more of them are of class 1."""
    wrong = {"train": 1, "validation": 1, "held": 3}
    for split, count in wrong.items():
        for number in range(8):
            label = "red" if number >= count else "green"
            write_picture(tmp_path / split / label / f"{number}.png", (255, 0, 0))
    recipe = dataclasses.replace(
        IN_FOLDERS, num_classes=2, held_out_split=held_out, train_split="train"
    )
    run = model_dir.claim(tmp_path / "run", recipe, ["red", "green"], str(tmp_path))
    images = keras.Input([16, 16, 3])
    red = keras.layers.GlobalAveragePooling2D()(images)[:, :1]
    model = keras.Model(images, keras.ops.concatenate([red, 0 * red], -1))
    open_data = partial(evaluate.open_split, run, recipe, None)
    found = evaluate.fit_temperature(model, recipe, open_data)
    share = wrong[held_out or "validation"] / 8
    # Red is 1, and 2 with the mean and the standard deviation of the recipe.
    assert found == pytest.approx(2 / np.log((1 - share) / share), rel=1e-4)
    said = capsys.readouterr().out
    assert f"{held_out or 'validation'} with the temp" in said
    # Its probabilities are the shares.
    assert f"loss {entropy([share, 1 - share]):.4f}" in said
