# SPDX-License-Identifier: Apache-2.0
"""Interrupted runs of a small network: killed, stopped, out of patience, on a full disk, or damaged."""

import dataclasses
import resource
import signal
import subprocess

import pytest
from helpers import assert_equal_arrays, program
from training_runs import (
    SHORT,
    act_at,
    assert_same_run,
    saved_steps,
    weights,
)

from lambdanet import cli
from lambdanet.configs.recipe import to_json
from lambdanet.training.run import checkpoints, model_dir
from lambdanet.training.run.checkpoints import BestEpoch
from lambdanet.training.run.stop_request import StopRequest
from lambdanet.training.train import train

pytestmark = pytest.mark.usefixtures("small_networks")

RECIPE = dataclasses.replace(SHORT, repeated_augmentation=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir):
    """A run without interruption."""
    path = tmp_path_factory.mktemp("finished")
    train(RECIPE, path, data_dir)
    return path


@pytest.fixture
def ctrl_c():
    """The handler of a process in the foreground; one in the background of a script ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def _command(path, data_dir):
    recipe = path.with_suffix(".json")
    recipe.write_text(to_json(RECIPE))
    folders = [f"--model_dir={path}", f"--data_dir={data_dir}"]
    return ["train", f"--recipe={recipe}", *folders]


@pytest.mark.jax
@pytest.mark.slow
def test_killed_run_resumes_to_same_weights(finished, data_dir, tmp_path, capsys):
    command = program("train_until_killed.py", *_command(tmp_path, data_dir))
    del command["env"]["TF_CPP_MIN_LOG_LEVEL"]
    done = subprocess.run(**command, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == "killed: importing tensorflow, which takes seconds\n"
    assert saved_steps(tmp_path) == [4]
    assert (tmp_path / ".lock").exists()

    train(RECIPE, tmp_path, data_dir)
    assert "after epoch 1 of 3, step 4" in capsys.readouterr().out
    assert not (tmp_path / ".lock").exists()
    assert_same_run(tmp_path, finished)


@pytest.mark.jax
@pytest.mark.slow
def test_ctrl_c_in_first_epoch_saves_its_step(
    finished, data_dir, tmp_path, monkeypatch, capfd, ctrl_c
):
    """On data that are prepared; the run is resumed as after SIGTERM, in train_test."""
    act_at(monkeypatch, [2], ctrl_c)
    assert cli.main(_command(tmp_path, data_dir)) == 130
    assert capfd.readouterr().err.splitlines() == [
        "stopping after this step, which is saved first; Ctrl-C again ends at once",
        "lambdanet: stopped by Ctrl-C at step 2, which is saved; the same command resumes there",
    ]
    assert saved_steps(tmp_path) == [2]


def test_ignored_ctrl_c_remains_ignored(ctrl_c):
    """As in a script's background process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopRequest() as stop:
        ctrl_c()
    assert not stop.received


@pytest.mark.jax
@pytest.mark.slow
def test_best_epoch_is_kept_and_patience_ends_run(
    data_dir, tmp_path, monkeypatch, capsys
):
    """With accuracies given here: the third epoch is the best, and two worse ones end the run."""
    given = {1: 0.25, 2: 0.125, 3: 0.5, 4: 0.5, 5: 0.375}
    recipe = dataclasses.replace(
        RECIPE, epochs=6, held_out_split="train[64:96]", patience=2
    )
    original = BestEpoch.on_epoch_end
    trained = {}
    seen = []

    def judge(self, epoch, logs=None):
        trained[epoch + 1] = self.model.get_weights()
        seen.append(logs["val_accuracy"])
        original(self, epoch, {**logs, "val_accuracy": given[epoch + 1]})

    monkeypatch.setattr(BestEpoch, "on_epoch_end", judge)
    saved = checkpoints.SaveCheckpoints.on_epoch_end

    def killed(self, epoch, logs=None):
        if epoch + 1 == 4:
            raise KeyboardInterrupt
        saved(self, epoch, logs)

    # Killed after the best epoch was saved, before the checkpoint.
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.SaveCheckpoints, "on_epoch_end", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path, data_dir)
    result = train(recipe, tmp_path, data_dir)
    assert (result["epoch"], result["best_epoch"]) == (5, 3)
    assert result["best_val_accuracy"] == 0.5
    # Of 32 held-out images.
    assert all(value * 32 == round(value * 32) for value in seen)
    assert_equal_arrays(weights(tmp_path), trained[3])
    assert "finished already" not in capsys.readouterr().out
    assert train(recipe, tmp_path, data_dir)["epoch"] == 5
    assert "finished already" in capsys.readouterr().out


@pytest.mark.jax
@pytest.mark.slow
def test_full_disk_ends_run_and_keeps_last_checkpoint(
    data_dir, tmp_path, monkeypatch, capsys
):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    half_a_checkpoint = (20_000, limits[1])  # bytes

    def fill_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, half_a_checkpoint)

    act_at(monkeypatch, [6], fill_disk)
    try:
        assert cli.main(_command(tmp_path, data_dir)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "lambdanet: error: cannot write the checkpoint of step 8: " in said
    assert saved_steps(tmp_path) == [4]
    assert model_dir.load_trained_model(tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
