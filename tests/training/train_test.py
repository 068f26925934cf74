# SPDX-License-Identifier: Apache-2.0
"""Complete training runs: reproducible weights, also after interruptions, and refused runs."""

import collections
import dataclasses
import os
import resource
import signal
import subprocess

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tf_keras as keras
from helpers import program
from PIL import Image

from lambdanet import cli, configs
from lambdanet.configs import recipe as recipes
from lambdanet.errors import InputError, Preempted
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import build, callbacks, model_dir
from lambdanet.training.train import train

EPOCHS = 6
SETTINGS = {"epochs": EPOCHS, "train_split": "train[:64]", "eval_split": "test[:24]", "global_batch_size": 16}
RECIPE = dataclasses.replace(configs.get_recipe("digits"), **SETTINGS)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir):
    """A complete run, and the result of `train`."""
    path = tmp_path_factory.mktemp("finished")
    return path, train(RECIPE, path, data_dir)


def test_run_opens_tfds_dataset_once(tmp_path, data_dir, monkeypatch):
    opened, builder = [], tfds.builder
    monkeypatch.setattr(
        tfds, "builder", lambda *args, **kwargs: opened.append(args) or builder(*args, **kwargs)
    )
    train(dataclasses.replace(RECIPE, epochs=2), tmp_path, data_dir)
    assert opened == [("digits",)]


def test_run_lists_each_class_folder_once(tmp_path, monkeypatch):
    folders = [tmp_path / split / name for split in ("train", "validation") for name in ("cat", "dog")]
    for folder in folders:
        folder.mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    listed, scandir = collections.Counter(), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": listed.update([str(path)]) or scandir(path))
    settings = {"dataset": "folder", "train_split": "train", "eval_split": "validation", "num_classes": 0}
    recipe = dataclasses.replace(RECIPE, **settings, epochs=2, global_batch_size=4)
    assert train(recipe, tmp_path / "run", str(tmp_path))["step"] == 4
    assert [listed[str(folder)] for folder in folders] == [1] * 4


def _weights(path):
    return model_dir.load_trained_model(path)[0].get_weights()


def _saved(path):
    return sorted(int(file.stem.removeprefix("ckpt-")) for file in path.glob("checkpoints/ckpt-*.index"))


def _assert_same_weights(left, right):
    for a, b in zip(_weights(left), _weights(right), strict=True):
        np.testing.assert_array_equal(a, b)


def test_run_writes_recipe_checkpoints_history_and_logs(finished):
    path, result = finished
    assert sorted(file.name for file in path.iterdir()) == [
        "checkpoints",
        "classes.txt",
        "data_dir.txt",
        "history.csv",
        "logs",
        "recipe.json",
    ]
    rows = callbacks.read_history(path / "history.csv")
    assert [int(row["step"]) for row in rows] == [4 * epoch for epoch in range(1, EPOCHS + 1)]
    assert (result["epoch"], result["step"]) == (EPOCHS, 4 * EPOCHS)
    assert result["val_accuracy"] == float(rows[-1]["val_accuracy"])
    assert _saved(path) == [4 * epoch for epoch in (EPOCHS - 2, EPOCHS - 1, EPOCHS)]


def test_killed_run_resumes_to_same_weights(finished, data_dir, tmp_path, capsys):
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    flags = ["--recipe=digits", f"--model_dir={tmp_path}", f"--data_dir={data_dir}", *settings]
    command = program("train_until_killed.py", "train", *flags)
    del command["env"]["TF_CPP_MIN_LOG_LEVEL"]
    done = subprocess.run(**command, capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert _saved(tmp_path) == [4] and (tmp_path / ".lock").exists()

    result = train(RECIPE, tmp_path, data_dir)
    assert f"after epoch 1 of {EPOCHS}, step 4" in capsys.readouterr().out
    assert not (tmp_path / ".lock").exists()
    _assert_same_weights(tmp_path, finished[0])
    assert result["val_loss"] == finished[1]["val_loss"]
    rows = callbacks.read_history(tmp_path / "history.csv")
    assert [int(row["epoch"]) for row in rows] == list(range(1, EPOCHS + 1))


def _at_step(monkeypatch, step, action):
    """Runs an action after a training step, before its callback."""
    original = callbacks.SaveCheckpoints.on_train_batch_end

    def act(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == step:
            action()
        original(self, batch, logs)

    monkeypatch.setattr(callbacks.SaveCheckpoints, "on_train_batch_end", act)


def test_run_stopped_by_sigterm_resumes_at_same_step(finished, data_dir, tmp_path, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command = ["train", "--recipe=digits", f"--model_dir={tmp_path}", f"--data_dir={data_dir}", *settings]
    with monkeypatch.context() as patch:
        _at_step(patch, 6, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert cli.main(command) == 75
    said = capsys.readouterr().err
    assert "lambdanet: stopped by SIGTERM at step 6, which is saved" in said and said.count("\n") == 1
    assert _saved(tmp_path) == [4, 6] and signal.getsignal(signal.SIGTERM) is before

    assert cli.main(command) == 0
    assert f"after epoch 1 of {EPOCHS} and 2 of 4 steps, step 6" in capsys.readouterr().out
    _assert_same_weights(tmp_path, finished[0])
    rows, expected = (callbacks.read_history(path / "history.csv") for path in (tmp_path, finished[0]))
    for name in ("epoch", "step", "learning_rate", "loss", "accuracy", "val_loss", "val_accuracy"):
        assert [row[name] for row in rows] == [row[name] for row in expected]


DROPPING = dataclasses.replace(
    RECIPE, epochs=3, dropout_rate=0.3, stochastic_depth_rate=0.3, ema_decay=0.5, input_size=16
)


@pytest.fixture(scope="module")
def dropping(tmp_path_factory, data_dir):
    """A complete run with dropout, stochastic depth and averages."""
    path = tmp_path_factory.mktemp("dropping")
    train(DROPPING, path, data_dir)
    return path


@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_resumed_run_has_same_dropout(dropping, data_dir, tmp_path, monkeypatch, where):
    """Stops after step 6, or at once in the evaluation of the second epoch, which is then repeated."""
    event = "on_train_batch_end" if where == "training" else "on_test_batch_end"
    original, step = getattr(callbacks.SaveCheckpoints, event), 6 if where == "training" else 8

    def stop(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self, batch, logs)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.SaveCheckpoints, event, stop)
        with pytest.raises(Preempted, match=f"stopped by SIGTERM at step {step}, which is saved"):
            train(DROPPING, tmp_path, data_dir)
    assert len(callbacks.read_history(tmp_path / "history.csv")) == 1
    train(DROPPING, tmp_path, data_dir)
    _assert_same_weights(tmp_path, dropping)
    rows, expected = (callbacks.read_history(path / "history.csv") for path in (tmp_path, dropping))
    for name in ("epoch", "step", "learning_rate", "loss", "accuracy", "val_loss", "val_accuracy"):
        assert [row[name] for row in rows] == [row[name] for row in expected]


def test_best_epoch_is_kept_and_patience_ends_run(data_dir, tmp_path, monkeypatch, capsys):
    """With accuracies given here: the third epoch is the best, and two worse ones end the run."""
    given = {1: 0.25, 2: 0.125, 3: 0.5, 4: 0.5, 5: 0.375}
    recipe = dataclasses.replace(RECIPE, held_out_split="train[64:96]", patience=2, input_size=16)
    original, weights, seen = callbacks.KeepBestEpoch.on_epoch_end, {}, []

    def judge(self, epoch, logs=None):
        weights[epoch + 1] = self.model.get_weights()
        seen.append(logs["val_accuracy"])
        original(self, epoch, {**logs, "val_accuracy": given[epoch + 1]})

    monkeypatch.setattr(callbacks.KeepBestEpoch, "on_epoch_end", judge)
    saved = callbacks.SaveCheckpoints.on_epoch_end

    def killed(self, epoch, logs=None):
        if epoch + 1 == 4:
            raise KeyboardInterrupt
        saved(self, epoch, logs)

    with monkeypatch.context() as patch:  # killed after the best epoch was saved, before the checkpoint
        patch.setattr(callbacks.SaveCheckpoints, "on_epoch_end", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path, data_dir)
    result = train(recipe, tmp_path, data_dir)
    assert (result["epoch"], result["best_epoch"], result["best_val_accuracy"]) == (5, 3, 0.5)
    assert all(value * 32 == round(value * 32) for value in seen)  # of 32 held-out images
    for got, wanted in zip(_weights(tmp_path), weights[3], strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert "finished already" not in capsys.readouterr().out
    assert train(recipe, tmp_path, data_dir)["epoch"] == 5
    assert "finished already" in capsys.readouterr().out


def test_full_disk_ends_run_and_keeps_last_checkpoint(data_dir, tmp_path, monkeypatch, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command = ["train", "--recipe=digits", f"--model_dir={tmp_path}", f"--data_dir={data_dir}", *settings]
    _at_step(monkeypatch, 6, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1])))
    try:
        assert cli.main(command) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert "lambdanet: error: cannot write the checkpoint of step 8: " in said and said.count("\n") == 1
    assert _saved(tmp_path) == [4] and model_dir.load_trained_model(tmp_path)
    assert not list(tmp_path.rglob("*_temp"))


def test_invalid_history_ends_run_before_training(data_dir, tmp_path):
    (tmp_path / "history.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="history.csv' is not the history of a run"):
        train(RECIPE, tmp_path, data_dir)
    assert not _saved(tmp_path) and (tmp_path / "history.csv").read_bytes() == b"\xff\xfe"


def test_same_recipe_gives_same_weights(finished, data_dir, tmp_path):
    assert train(RECIPE, tmp_path, data_dir)["loss"] == finished[1]["loss"]
    _assert_same_weights(tmp_path, finished[0])


def test_finished_run_is_reported_and_unchanged(finished, data_dir, capsys):
    path, result = finished
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert train(RECIPE, path, data_dir) == result
    assert (
        f"finished already: lambda_resnet_tiny on digits in {path}, {EPOCHS} epochs"
        in capsys.readouterr().out
    )
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_resumed_run_finds_its_data(finished, data_dir):
    path, result = finished
    assert (path / "data_dir.txt").read_text() == f"{data_dir}\n"
    assert train(RECIPE, path) == result


def test_damaged_newest_checkpoint_repeats_one_epoch(finished, data_dir, tmp_path, capsys):
    for file in finished[0].rglob("*"):
        if file.is_file() and "logs" not in file.parts:
            target = tmp_path / file.relative_to(finished[0])
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    newest = tmp_path / "checkpoints" / f"ckpt-{4 * EPOCHS}.data-00000-of-00001"
    newest.write_bytes(newest.read_bytes()[:1000])
    train(RECIPE, tmp_path, data_dir)
    said = capsys.readouterr().out
    assert f"ckpt-{4 * EPOCHS} is damaged" in said and f"after epoch {EPOCHS - 1} of {EPOCHS}" in said
    _assert_same_weights(tmp_path, finished[0])


def test_diverging_loss_ends_run(data_dir, tmp_path):
    recipe = dataclasses.replace(RECIPE, learning_rate=1e30, warmup_epochs=0)
    with pytest.raises(
        InputError, match=r"training diverged: .* at step \d+, .* no checkpoint was written yet"
    ):
        train(recipe, tmp_path, data_dir)
    assert not _saved(tmp_path) and not (tmp_path / "history.csv").exists()


def test_averages_and_bfloat16_train_and_load(data_dir, tmp_path):
    recipe = dataclasses.replace(
        RECIPE, epochs=2, ema_decay=0.5, mixed_precision=True, optimizer="adam", learning_rate=1e-3
    )
    result = train(recipe, tmp_path, data_dir)
    assert keras.mixed_precision.global_policy().name == "float32"
    model, _ = model_dir.load_trained_model(tmp_path)
    assert {weight.dtype for weight in model.get_weights()} == {np.dtype("float32")}
    build.compile_model(recipe, model, keras.optimizers.SGD())
    loss, accuracy = model.evaluate(Dataset.open(recipe, data_dir).eval(), verbose=0)
    assert (loss, accuracy) == pytest.approx((result["val_loss"], result["val_accuracy"]), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "lambda_resnet_tny"},
            "unknown model 'lambda_resnet_tny'; did you mean lambda_resnet_tiny",
        ),
        ({"zero_head": True}, "start_from must be weights to fine-tune, with zero_head, got ''"),
        ({"start_from": "/none"}, "model_dir must be .*, got '/none'; it is not a directory"),
        ({"model_options": {"scop": 7}}, "no option 'scop'; its options: "),
        ({"model_options": {"num_classes": 7}}, "options of the model's layers, got 'num_classes'"),
        ({"model_options": {"scope": 4}}, "scope"),
        ({"model_options": {"scope": -3}}, "scope"),
        ({"model_options": {"num_heads": 3}}, "divisible|multiple"),
        ({"dataset": "digts"}, "unknown dataset 'digts'"),
        ({"global_batch_size": 65}, "global_batch_size must be at most 64, .*, got 65"),
        ({"num_classes": 11}, "num_classes must be 10, .*, got 11"),
        ({"eval_split": "tst"}, "unknown split of dataset digits 'tst'"),
    ],
)
def test_refused_run_writes_nothing(data_dir, tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        train(dataclasses.replace(RECIPE, **changes), tmp_path / "run", data_dir)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_weight_decay_of_kernels_only():
    model = build.build_model(dataclasses.replace(RECIPE, weight_decay=0.2))
    kernels = [v for v in model.trainable_variables if "kernel" in v.name.rpartition("/")[2]]
    assert kernels and len(kernels) < len(model.trainable_variables)
    expected = 0.1 * sum(np.square(kernel.numpy()).sum() for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)
    assert not build.build_model(dataclasses.replace(RECIPE, weight_decay=0.0)).losses


def test_batch_norm_momentum_of_recipe():
    model = build.build_model(dataclasses.replace(RECIPE, bn_momentum=0.7))
    norms = [layer for layer in model.submodules if isinstance(layer, keras.layers.BatchNormalization)]
    assert norms and {norm.momentum for norm in norms} == {0.7}


@pytest.mark.parametrize(
    ("optimizer", "attribute"), [("sgd", "momentum"), ("adam", "beta_1"), ("rmsprop", "momentum")]
)
def test_optimizer_of_recipe(optimizer, attribute):
    recipe = dataclasses.replace(
        RECIPE,
        optimizer=optimizer,
        momentum=0.8,
        warmup_epochs=1.5,
        ema_decay=0.99,
        schedule="exponential",
        cosine_floor=0.25,
        decay_rate=0.9,
        decay_epochs=3,
    )
    built = build.build_optimizer(recipe, steps_per_epoch=10)
    assert getattr(built, attribute) == 0.8 and built.ema_momentum == 0.99
    schedule = built.get_config()["learning_rate"]["config"]
    assert schedule == {
        **{"peak": 0.1, "total_steps": 60, "warmup_steps": 15, "shape": "exponential"},
        **{"floor": 0.25, "decay_rate": 0.9, "decay_steps": 30.0},
    }
    assert built.ema_overwrite_frequency is None  # or the averages replace the weights


def test_optimizer_options_of_recipe():
    for optimizer, options in [
        ("sgd", {"nesterov": True}),
        ("adam", {"beta_2": 0.9999}),
        ("rmsprop", {"rho": 0.8, "epsilon": 1.0}),
    ]:
        recipe = dataclasses.replace(RECIPE, optimizer=optimizer, optimizer_options=options)
        built = build.build_optimizer(recipe, steps_per_epoch=10)
        assert {name: getattr(built, name) for name in options} == options


def test_recipes_accept_every_optimizer():
    assert sorted(build.OPTIMIZERS) == sorted(recipes.OPTIMIZERS)
