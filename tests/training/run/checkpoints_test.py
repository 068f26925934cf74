# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: number to keep, damaged files, and other models."""

import keras
import numpy as np
import pytest

from lambdanet.errors import InputError
from lambdanet.training.run.best_epoch import BestEpoch
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.optimizers import with_options


def _model(width=4, extra=False, policy="float32"):
    keras.mixed_precision.set_global_policy(policy)
    try:
        layers = [
            keras.layers.Dense(width, name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
        ]
        layers += [keras.layers.Dense(3, name="more")] if extra else []
        x = images = keras.Input([2])
        for layer in [*layers, keras.layers.Dense(2, name="head")]:
            x = layer(x)
        return keras.Model(images, x, name="small")
    finally:
        keras.mixed_precision.set_global_policy("float32")


def _checkpoints(path, optimizer=keras.optimizers.SGD, policy="float32", **kwargs):
    options = (
        {"momentum": 0.9, "use_ema": True} if optimizer is keras.optimizers.SGD else {}
    )
    built = with_options(optimizer)(name=optimizer.__name__, **options)
    return Checkpoints(path, _model(policy=policy, **kwargs), built)


def _train(checkpoints, steps):
    """Trains some steps with an arbitrary loss."""
    for step in range(steps):
        weights = checkpoints.model.trainable_variables
        checkpoints.optimizer.apply(
            [keras.ops.full(v.shape, 0.1 * (step + 1)) for v in weights], weights
        )


def _values(checkpoints):
    variables = [*checkpoints.model.variables, *checkpoints.optimizer.variables]
    return [np.array(variable) for variable in variables]


def _assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def two(tmp_path):
    """A folder with the checkpoints of steps 1 and 2, and the values of each."""
    checkpoints, values = _checkpoints(tmp_path), {}
    for step in (1, 2):
        _train(checkpoints, 2)
        checkpoints.save(step)
        values[step] = _values(checkpoints)
    return tmp_path, values


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_restore_recovers_all_variables(tmp_path, optimizer, policy):
    saved = _checkpoints(tmp_path, optimizer, policy)
    _train(saved, 3)
    saved.save(7)
    again = _checkpoints(tmp_path, optimizer, policy)
    assert again.restore() == 7
    _assert_equal(_values(again), _values(saved))
    assert int(again.optimizer.iterations) == 3


def test_empty_folder_is_step_zero(tmp_path):
    checkpoints = _checkpoints(tmp_path / "none")
    assert checkpoints.restore() == 0 and checkpoints.steps() == []
    assert not (tmp_path / "none").exists()


def test_newest_three_are_kept(tmp_path):
    checkpoints = _checkpoints(tmp_path)
    for step in (1, 2, 3, 4):
        checkpoints.save(step)
    assert checkpoints.steps() == [2, 3, 4]
    resumed = _checkpoints(tmp_path)
    assert resumed.restore() == 4
    resumed.save(5)
    assert resumed.steps() == [3, 4, 5]


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [_cut, _flip, lambda path: path.write_bytes(b"")],
    ids=["cut", "flipped", "empty"],
)
def test_damaged_checkpoint_falls_back_to_previous(two, capsys, damage):
    path, values = two
    damage(path / "ckpt-2.npz")
    checkpoints = _checkpoints(path)
    assert checkpoints.restore() == 1
    _assert_equal(_values(checkpoints), values[1])
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and f"{path / 'ckpt-2.npz'} is damaged" in said


def test_only_damaged_checkpoints_are_rejected(two):
    path, _ = two
    for file in path.glob("ckpt-*.npz"):
        _cut(file)
    with pytest.raises(
        InputError, match="no checkpoint in .* can be read; remove that folder"
    ):
        _checkpoints(path).restore()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"width": 5},
            r"small with SGD: model/hidden/kernel is \(2, 4\) there and \(2, 5\) in the model \(and",
        ),
        ({"extra": True}, r"small with SGD: it lacks model/more/kernel \(4, 3\) \(and"),
        (
            {"optimizer": keras.optimizers.Adam},
            r"small with Adam: it lacks optimizer/Adam/iteration \(\) \(and",
        ),
    ],
)
def test_checkpoint_of_other_model_is_rejected(two, changes, message):
    checkpoints = _checkpoints(two[0], **changes)
    before = _values(checkpoints)
    with pytest.raises(InputError, match=message) as caught:
        checkpoints.restore()
    assert "\n" not in str(caught.value)
    _assert_equal(_values(checkpoints), before)


def test_use_averages_sets_moving_averages(tmp_path):
    checkpoints = _checkpoints(tmp_path)
    variable = checkpoints.model.trainable_variables[0]
    expected = np.array(variable)
    for _ in range(4):
        _train(checkpoints, 1)
        expected = 0.99 * expected + 0.01 * np.array(variable)
    checkpoints.use_averages()
    np.testing.assert_allclose(variable, expected, rtol=1e-5)


@pytest.mark.parametrize("part", ["model", "optimizer"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_all_finite_detects_nonfinite_values(tmp_path, part, value):
    checkpoints = _checkpoints(tmp_path)
    assert checkpoints.all_finite()
    variable = [
        v for v in getattr(checkpoints, part).variables if v.dtype == "float32"
    ][-1]
    variable.assign(np.full(variable.shape, value))
    assert not checkpoints.all_finite()


def test_unwritable_folder_is_os_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write the checkpoint of step 1"):
        _checkpoints(tmp_path / "file" / "inside").save(1)


@pytest.mark.parametrize(
    "content",
    [b"\xff", b"[" * 100_000, b"[]", b"{}", b'{"epoch": Infinity, "accuracy": 1}'],
)
def test_unreadable_best_epoch_is_named(tmp_path, content):
    (tmp_path / "best.json").write_bytes(content)
    with pytest.raises(
        InputError, match="best.json' cannot be read: .*; remove it to continue"
    ) as caught:
        BestEpoch(_checkpoints(tmp_path), patience=1)
    assert "\n" not in str(caught.value)
