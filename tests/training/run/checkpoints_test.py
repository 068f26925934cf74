# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: number to keep, damaged files, and other models."""

import keras
import numpy as np
import pytest
from helpers import assert_equal_arrays
from keras import layers
from refusals import refused
from training_runs import recipe_with

from lambdanet.training.run.build import build_optimizer
from lambdanet.training.run.checkpoints import BestEpoch, Checkpoints
from lambdanet.training.run.step import move_averages

pytestmark = pytest.mark.jax


def _checkpoints(path, optimizer="sgd", width=4, policy="float32"):
    x = images = keras.Input([2])
    for layer in (
        layers.Dense(width, dtype=policy, name="hidden"),
        layers.BatchNormalization(dtype=policy, name="norm"),
        layers.Dense(2, dtype=policy, name="head"),
    ):
        x = layer(x)
    model = keras.Model(images, x, name="small")
    recipe = recipe_with(
        "digits",
        optimizer=optimizer,
        ema_decay=0.99 if optimizer == "sgd" else 0.0,
    )
    return Checkpoints(path, model, build_optimizer(recipe, model.weights, 10))


def _train(checkpoints, steps):
    """Trains some steps with an arbitrary loss."""
    for step in range(steps):
        weights = checkpoints.model.trainable_variables
        checkpoints.optimizer.apply(
            [keras.ops.full(v.shape, 0.1 * (step + 1)) for v in weights], weights
        )
        if checkpoints.averages:
            move_averages(checkpoints.optimizer, checkpoints.model.weights)


def _values(checkpoints):
    variables = [*checkpoints.model.variables, *checkpoints.optimizer.variables]
    return [np.array(variable) for variable in variables]


@pytest.fixture
def two(tmp_path):
    """A folder with the checkpoints of steps 1 and 2, and the values of the first."""
    checkpoints = _checkpoints(tmp_path)
    _train(checkpoints, 2)
    checkpoints.save(1)
    values = _values(checkpoints)
    _train(checkpoints, 2)
    checkpoints.save(2)
    return tmp_path, values


@pytest.mark.parametrize(
    ("optimizer", "policy"), [("sgd", "float32"), ("adam", "mixed_bfloat16")]
)
def test_restore_recovers_all_variables(tmp_path, optimizer, policy):
    saved = _checkpoints(tmp_path, optimizer, policy=policy)
    _train(saved, 3)
    saved.save(7)
    again = _checkpoints(tmp_path, optimizer, policy=policy)
    assert again.restore() == 7
    assert_equal_arrays(_values(again), _values(saved))
    assert int(again.optimizer.iterations) == 3


def test_earlier_checkpoint_has_no_averages_of_statistics(two):
    """They start at the statistics, and all others continue."""
    file = two[0] / "ckpt-2.npz"
    with np.load(file) as content:
        arrays = dict(content)
    arrays["model/norm/moving_mean"] += 3
    del arrays["average/norm/moving_mean"]
    np.savez(file, **arrays)
    checkpoints = _checkpoints(two[0])
    assert checkpoints.restore() == 2
    for weight, average in checkpoints.averages:
        kept = arrays[f"model/{weight.path}"]
        assert_equal_arrays([average], [arrays.get(f"average/{weight.path}", kept)])


def test_newest_three_are_kept(tmp_path):
    folder = tmp_path / "checkpoints"
    checkpoints = _checkpoints(folder)
    assert checkpoints.restore() == 0
    assert checkpoints.steps() == []
    assert not folder.exists()
    for step in (1, 2, 3, 4):
        checkpoints.save(step)
    assert checkpoints.steps() == [2, 3, 4]
    resumed = _checkpoints(folder)
    assert resumed.restore() == 4
    resumed.save(5)
    assert resumed.steps() == [3, 4, 5]


def _flip(content):
    middle = content.index(b"NUMPY", len(content) // 2)  # of an array
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], _flip, lambda content: b""],
    ids=["cut", "flipped", "empty"],
)
def test_damaged_checkpoint_falls_back_to_previous(two, capsys, damage):
    path, values = two
    newest = path / "ckpt-2.npz"
    newest.write_bytes(damage(newest.read_bytes()))
    checkpoints = _checkpoints(path)
    assert checkpoints.restore() == 1
    assert_equal_arrays(_values(checkpoints), values)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert f"{newest} is damaged" in said
    (path / "ckpt-1.npz").write_bytes(b"")
    with refused("no checkpoint in .* can be read; remove that folder"):
        checkpoints.restore()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"width": 5},
            r"small with sgd: model/hidden/kernel is \(2, 4\) there and \(2, 5\) in the model \(and",
        ),
        (
            {"optimizer": "adam"},
            r"small with adam: it lacks optimizer/adam/iteration \(\) \(and",
        ),
    ],
)
def test_checkpoint_of_other_model_is_rejected(two, changes, message):
    checkpoints = _checkpoints(two[0], **changes)
    before = _values(checkpoints)
    with refused(message):
        checkpoints.restore()
    assert_equal_arrays(_values(checkpoints), before)


def test_all_finite_detects_nonfinite_moments(tmp_path):
    checkpoints = _checkpoints(tmp_path)
    assert checkpoints.all_finite()
    moment = checkpoints.optimizer.variables[-1]
    moment.assign(np.full(moment.shape, np.inf))
    assert not checkpoints.all_finite()


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"[" * 100_000, b"[]", b"{}", b'{"epoch": Infinity, "accuracy": 1}'],
)
def test_unreadable_best_epoch_is_named(tmp_path, content):
    (tmp_path / "best.json").write_bytes(content)
    with refused("best.json' cannot be read: .*; remove it to continue"):
        BestEpoch(_checkpoints(tmp_path), patience=1, task=None)
