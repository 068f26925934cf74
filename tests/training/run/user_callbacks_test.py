# SPDX-License-Identifier: Apache-2.0
"""Recipes in files, and callbacks of the user, from the command line."""

import dataclasses
import threading

import pytest
from refusals import refused
from training_runs import SHORT, act_at

from lambdanet import cli, configs
from lambdanet.configs.recipe import to_json
from lambdanet.training.run.logs import FirstStep
from lambdanet.training.train import train

RECIPE = dataclasses.replace(SHORT, epochs=1)
MODULE = """
import keras

class Rows(keras.callbacks.Callback):
    def __init__(self, recipe, path):
        super().__init__()
        self.path, self.saved = path, recipe.epochs

    def on_epoch_end(self, epoch, logs=None):
        assert not list(self.path.glob("checkpoints/*.npz"))
        with open(self.path / "rows.txt", "a") as file:
            print(epoch, self.saved, sorted(logs), file=file)

def nothing(recipe, path):
    return None

number = 3
"""


@pytest.fixture
def module(small_network, tmp_path, monkeypatch):
    (tmp_path / "my_callbacks.py").write_text(MODULE)
    (tmp_path / "broken_callbacks.py").write_text(
        "import a_package_that_is_not_installed"
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_recipe_file_and_callback_from_command_line(module, data_dir, tmp_path):
    (tmp_path / "mine.json").write_text(to_json(RECIPE))
    arguments = [
        "--recipe=mine.json",
        "--model_dir=run",
        f"--data_dir={data_dir}",
        "--set=seed=3",
    ]
    assert cli.main(["train", *arguments, "--callback=my_callbacks:Rows"]) == 0
    [row] = (tmp_path / "run/rows.txt").read_text().splitlines()
    assert row.startswith(
        "0 1 ['accuracy', 'images_per_second', 'loss', 'val_accuracy', 'val_loss']"
    )
    assert configs.get_recipe("run/recipe.json") == dataclasses.replace(RECIPE, seed=3)


def test_lines_before_the_first_step_end_where_it_fails(
    small_network, data_dir, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("lambdanet.training.run.logs.SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr("lambdanet.training.run.memory.available_bytes", lambda: 0)
    act_at(monkeypatch, [1], lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(RECIPE, tmp_path, data_dir)
    said = capsys.readouterr().out
    compiling = "compiling the first step, which may take minutes"
    assert f"needs less\n{compiling}\n0 s so far" in said
    assert "took" not in said
    assert not any("_print" in thread.name for thread in threading.enumerate())


def test_lines_about_the_first_step_end_with_it(capsys):
    first_step = FirstStep()
    for batch in range(2):
        first_step.on_train_batch_end(batch)
        assert not any("_print" in thread.name for thread in threading.enumerate())
    assert capsys.readouterr().out.count("the first step took 0 s\n") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_callbacks", "callback must be module:function, got 'my_callbacks'"),
        (
            "my_callbacks:number",
            "callback must be module:function, a function of my_callbacks, got",
        ),
        (
            "broken_callbacks:x",
            "cannot be imported: No module named 'a_package_that_is_not_installed'",
        ),
        (
            "my_callbacks:nothing",
            "result of nothing must be a keras.callbacks.Callback, got None",
        ),
    ],
)
def test_callbacks_that_cannot_be_used(module, tmp_path, name, message):
    with refused(message):
        train(RECIPE, tmp_path / "run", str(tmp_path), callback=[name])
    assert not (tmp_path / "run").exists()
