# SPDX-License-Identifier: Apache-2.0
"""Two worker processes train like one device, stop together, and resume after one was killed."""

import dataclasses
import json
import signal
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import program
from programs.small_model import small_model

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.sources import Shard
from lambdanet.training.run import build, create_devices, history, model_dir
from lambdanet.training.run.checkpoints import Checkpoints

EPOCHS, BATCH = 6, 16
SETTINGS = {
    **{
        "epochs": EPOCHS,
        "train_split": "train[:64]",
        "eval_split": "test[:21]",
        "global_batch_size": BATCH,
    },
    **{
        "sync_batch_norm": True,
        "learning_rate": 0.001,
        "warmup_epochs": 1.0,
        "ema_decay": 0.5,
    },
    **{"repeated_augmentation": 3},
}
RECIPE = dataclasses.replace(configs.get_recipe("digits"), **SETTINGS)
# With the step before and the worker.
SIGNALS = [(signal.SIGKILL, 7, 1), (signal.SIGTERM, 13, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def ended(folder):
    """The newest checkpoint and the exit statuses of the workers, per signal."""
    Dataset.open(RECIPE, str(folder)).num_examples(RECIPE.train_split)
    words = [
        "--distribute=multi_worker",
        *(f"--set={name}={value}" for name, value in SETTINGS.items()),
    ]
    command = program(
        "train_two_workers.py", folder, json.dumps(SIGNALS), "--save_every=3", *words
    )
    done = subprocess.run(**command, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _log(folder, time, worker):
    return (folder / f"log{time}_{worker}").read_text()


def _last_words(folder, time, worker):
    """The last lines of the command, without those of gRPC."""
    return [
        line
        for line in _log(folder, time, worker).splitlines()
        if line.startswith("lambdanet: ")
    ]


@pytest.mark.slow
def test_killed_worker_stops_other_and_both_resume(folder, ended):
    assert (ended["statuses"][0], ended["reached"][0]) == ([75, -9], 6)
    (said,) = _last_words(folder, 0, 0)
    assert said.startswith(
        "lambdanet: worker 0 of 2 stopped because another one was lost ("
    )
    assert f"after epoch 1 of {EPOCHS} and 2 of 4 steps, step 6\n" in _log(folder, 1, 0)
    assert "worker 1 of 2, from 0, at step 6\n" in _log(folder, 1, 1)


@pytest.mark.slow
def test_sigterm_to_one_worker_stops_all_at_same_step(folder, ended):
    step = 16  # the end of the epoch, where workers agree on stopping
    assert (ended["statuses"][1], ended["reached"][1]) == ([75, 75], step)
    for worker in range(2):
        (said,) = _last_words(folder, 1, worker)
        assert said.startswith(
            f"lambdanet: stopped by SIGTERM at step {step}, which is saved"
        )


@pytest.mark.slow
def test_only_chief_writes_and_prints(folder, ended):
    files = [
        "checkpoints",
        "classes.txt",
        "data_dir.txt",
        "history.csv",
        "logs",
        "recipe.json",
    ]
    assert sorted(file.name for file in (folder / "run").iterdir()) == files
    assert not list(folder.glob("run/checkpoints/*temp*"))
    count = 4 if keras.backend.backend() == "jax" else 2  # of logical processors
    where = f"{16 // count} on each of {count} devices of 2 machines, in float32"
    assert f"batches of 16 images, {where}; the learning rate rises to" in _log(
        folder, 0, 0
    ) and "Epoch 1/" in _log(folder, 0, 0)
    assert "Epoch" not in _log(folder, 0, 1) and "batches" not in _log(folder, 0, 1)


@pytest.mark.slow
def test_losses_and_weights_equal_one_device(folder, ended, monkeypatch):
    monkeypatch.setattr("lambdanet.models.zoo.create_model", small_model)
    shares = [
        Dataset.open(RECIPE, str(folder)).train(shard=Shard(index, 2, 2))
        for index in range(2)
    ]
    batches = tf.data.Dataset.zip(tuple(shares)).map(
        lambda left, right: tuple(
            tf.concat(pair, 0) for pair in zip(left, right, strict=True)
        )
    )
    epochs = ended["reached"][-1] // 4
    keras.utils.set_random_seed(RECIPE.seed)
    model = build.build_model(RECIPE)
    start = _flat(model)
    build.compile_model(RECIPE, model, build.build_optimizer(RECIPE, 4))
    steps = {"epochs": epochs, "steps_per_epoch": 4}
    losses = model.fit(
        batches.take(4 * epochs), **steps, shuffle=False, verbose=0
    ).history["loss"]
    rows = history.read_history(folder / "run" / "history.csv")
    assert [float(row["loss"]) for row in rows] == pytest.approx(losses, rel=1e-4)
    assert [int(row["step"]) for row in rows] == [
        4 * epoch for epoch in range(1, epochs + 1)
    ]

    Checkpoints(folder, model, model.optimizer).use_averages()
    dataset = Dataset.open(RECIPE, str(folder))
    loss, accuracy = model.evaluate(
        dataset.eval(), steps=dataset.eval_steps(), verbose=0
    )
    assert float(rows[-1]["val_loss"]) == pytest.approx(loss, rel=1e-3)
    assert float(rows[-1]["val_accuracy"]) == pytest.approx(accuracy, abs=1e-6)
    trained, _ = model_dir.load_trained_model(folder / "run")
    way = np.linalg.norm(_flat(model) - start)
    assert np.linalg.norm(_flat(trained) - _flat(model)) < 0.02 * way


def _flat(model):
    return np.concatenate(
        [variable.numpy().ravel() for variable in model.trainable_variables]
    )


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
    with pytest.raises(
        InputError,
        match=r"variable TF_CONFIG must be .* such as \{\"cluster\".*, got '",
    ) as error:
        create_devices.create_devices("multi_worker", 8)
    assert "\n" not in str(error.value)
