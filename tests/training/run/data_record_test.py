# SPDX-License-Identifier: Apache-2.0
"""Runs whose pictures change while they are interrupted, or after they are finished."""

import dataclasses
import shutil

import pytest
from picture_sources import RECIPE as PICTURES
from picture_sources import write_folder
from programs.small_model import plain_model
from refusals import refused
from training_runs import act_at, send_sigterm, times_of_files

from lambdanet.errors import Preempted
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import logs, start
from lambdanet.training.run.build import build_schedule
from lambdanet.training.train import train

# Three epochs of three steps, with 60 pictures of training.
RECIPE = dataclasses.replace(
    PICTURES, dataset="folder", eval_split="validation", num_classes=0, warmup_epochs=0
)


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    monkeypatch.setattr("lambdanet.models.zoo.create_model", plain_model)


@pytest.mark.slow
def test_run_goes_on_with_other_pictures_where_told(tmp_path, monkeypatch, capsys):
    """From its epoch, which begins again; then it is interrupted like any other."""
    path = tmp_path / "run"
    write_folder(tmp_path)
    act_at(monkeypatch, [4, 5], send_sigterm)
    with refused("stopped by SIGTERM at step 4", Preempted):
        train(RECIPE, path, str(tmp_path))
    first, *others = sorted(tmp_path.glob("train/*/[45]?.png"))
    other = first.rename(first.with_name("other.png"))
    with refused("train had 60, now 60, validation had 60, now 60; --accept_new_data"):
        train(RECIPE, path)
    for file in (other, *others):
        file.unlink()
    with refused("stopped by SIGTERM at step 5", Preempted):
        train(RECIPE, path, accept_new_data=True)
    assert "after epoch 1 of 3, step 4\n" in capsys.readouterr().out
    train(RECIPE, path)
    rows = logs.read_history(path / "history.csv")
    assert [row["step"] for row in rows] == ["3", "6", "8"]
    rates = [float(row["learning_rate"]) for row in rows[1:]]
    schedule = build_schedule(RECIPE, 2)
    assert rates == pytest.approx([float(schedule(3)), float(schedule(5))], rel=1e-5)
    now = start.read_record(path)
    none = start.read_record(tmp_path)
    assert start.resume(path, none, now, 8, False, False) == now
    assert f"{path} is of an earlier version, which did" in capsys.readouterr().out


@pytest.mark.slow
def test_finished_run_keeps_its_result_and_held_out_pictures(tmp_path, capsys):
    """Its folder is beside that of training."""
    write_folder(tmp_path, 20)
    shutil.rmtree(tmp_path / "validation")
    recipe = dataclasses.replace(RECIPE, global_batch_size=4, epochs=1)
    path = tmp_path / "run"
    result = train(recipe, path, str(tmp_path))
    before = times_of_files(path)
    held_out = start.read_record(path).held_out
    assert [name.split("/")[1] for name in held_out] == ["0", "1", "2"]
    (tmp_path / held_out[0]).unlink()
    assert evaluate(path)["examples"] == 2
    shutil.rmtree(tmp_path / "train")
    assert train(recipe, path, str(tmp_path)) == result
    assert "finished already: " in capsys.readouterr().out
    with refused("was made with another recipe: learning_rate is"):
        train(dataclasses.replace(recipe, learning_rate=1.0), path)
    assert times_of_files(path) == before
