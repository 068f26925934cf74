# SPDX-License-Identifier: Apache-2.0
"""Two worker processes train like one device, stop together, and resume after one was killed."""

import json
import re
import signal

import keras
import pytest
import tensorflow as tf
from processes import result_of
from refusals import refused
from training_runs import RUN_FILES, open_dataset, recipe_with

from lambdanet.training.data.sources import Shard
from lambdanet.training.run import build, devices, logs
from lambdanet.training.run.checkpoints import Checkpoints

EPOCHS = 4
SETTINGS = {
    "epochs": EPOCHS,
    "train_split": "train[:64]",
    "eval_split": "test[:21]",
    "global_batch_size": 16,
    "sync_batch_norm": True,
    "learning_rate": 0.001,
    "warmup_epochs": 1.0,
    "ema_decay": 0.5,
    "repeated_augmentation": 3,
}
RECIPE = recipe_with("digits", **SETTINGS)
# To worker 1 after a step; an epoch has four.
SIGNALS = [(signal.SIGKILL, 7), (signal.SIGTERM, 11)]
LAST_STEP = 12  # the end of the epoch, where workers agree on stopping


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def ended(folder):
    """The newest checkpoint and the exit statuses of the workers, per signal."""
    open_dataset(RECIPE, folder).num_examples(RECIPE.train_split)
    words = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    words += ["--distribute=multi_worker", "--save_every=3"]
    return result_of("train_two_workers.py", folder, json.dumps(SIGNALS), *words)


def _log(folder, time, worker):
    return (folder / f"log{time}_{worker}").read_text()


def _said(folder, time, worker):
    """What the command said, among the lines of gRPC, which may begin or end in the middle of one."""
    return re.findall("lambdanet: .*", _log(folder, time, worker))


@pytest.mark.slow
def test_workers_stop_together_and_resume(folder, ended):
    """After SIGKILL, and after SIGTERM to one of them."""
    assert (ended["statuses"][0], ended["reached"][0]) == ([75, -9], 6)
    (said,) = _said(folder, 0, 0)
    assert "worker 0 of 2 stopped because another one was lost (" in said
    assert f"after epoch 1 of {EPOCHS} and 2 of 4 steps, step 6\n" in _log(folder, 1, 0)
    assert "worker 1 of 2, from 0, at step 6\n" in _log(folder, 1, 1)
    assert (ended["statuses"][1], ended["reached"][1]) == ([75, 75], LAST_STEP)
    for worker in range(2):
        (said,) = _said(folder, 1, worker)
        assert f"stopped by SIGTERM at step {LAST_STEP}, which is saved" in said


@pytest.mark.slow
def test_only_chief_writes_and_prints(folder, ended):
    assert sorted(file.name for file in (folder / "run").iterdir()) == RUN_FILES
    assert not list(folder.glob("run/checkpoints/*temp*"))
    chief, other = (_log(folder, 0, worker) for worker in range(2))
    for word in ("Epoch", "batches"):
        assert word in chief
        assert word not in other


@pytest.mark.slow
def test_losses_equal_one_device(folder, ended, small_network):
    dataset = open_dataset(RECIPE, folder)
    shares = [dataset.train(shard=Shard(index, 2, 2)) for index in range(2)]
    batches = tf.data.Dataset.zip(*shares).map(
        lambda left, right: tuple(
            tf.concat(pair, 0) for pair in zip(left, right, strict=True)
        )
    )
    keras.utils.set_random_seed(RECIPE.seed)
    model = build.build_model(RECIPE)
    build.compile_model(RECIPE, model, build.build_optimizer(RECIPE, model.weights, 4))
    fitted = model.fit(
        batches.take(LAST_STEP), epochs=3, steps_per_epoch=4, shuffle=False, verbose=0
    )
    rows = logs.read_history(folder / "run/history.csv")
    losses = [float(row["loss"]) for row in rows]
    assert losses == pytest.approx(fitted.history["loss"], rel=1e-4)
    assert [int(row["step"]) for row in rows] == [4, 8, LAST_STEP]

    Checkpoints(folder, model, model.optimizer).use_averages()
    expected = model.evaluate(dataset.eval(), steps=dataset.eval_steps(), verbose=0)
    found = [float(rows[-1][name]) for name in ("val_loss", "val_accuracy")]
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        "",
        "{",
        pytest.param("[" * 100_000, id="deep"),
        '{"cluster": {"worker": ["a:1"]}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
    ],
)
def test_invalid_tf_config_is_rejected(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    with refused(r"variable TF_CONFIG must be .* such as \{\"cluster\".*, got '"):
        devices.create_devices("multi_worker", 8)
