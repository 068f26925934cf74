# SPDX-License-Identifier: Apache-2.0
"""The model_dir: recipe, permissions, and the trained model."""

import os
from dataclasses import replace

import pytest
from helpers import assert_equal_arrays
from refusals import refused

from lambdanet import configs
from lambdanet.training.run import model_dir
from lambdanet.training.run.build import build_model, build_optimizer
from lambdanet.training.run.checkpoints import Checkpoints

RECIPE = configs.get_recipe("digits")


def claim(path):
    return model_dir.claim(path, RECIPE)


def test_claim_writes_only_the_recipe(tmp_path):
    folder = tmp_path / "a/b"
    assert model_dir.check_model_dir(folder, RECIPE) == folder
    assert not list(tmp_path.iterdir())
    assert claim(folder) == folder
    assert [file.name for file in folder.iterdir()] == ["recipe.json"]
    assert model_dir.load_recipe(folder) == RECIPE
    assert claim(folder) == folder


def test_claim_removes_partial_checkpoints(tmp_path):
    for name in (
        "checkpoints/.ckpt-8.npz.1.partial",
        "best/.ckpt-4.npz.2.partial",
        "logs/.ckpt-4.npz.3.partial",
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "checkpoints/ckpt-4.npz").touch()
    claim(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert left == {"checkpoints/ckpt-4.npz", "logs/.ckpt-4.npz.3.partial"}


def test_other_recipe_is_rejected_with_differences(tmp_path):
    claim(tmp_path)
    before = (tmp_path / "recipe.json").read_bytes()
    other = replace(RECIPE, epochs=7, optimizer="adam", model_options={"scope": 5})
    for function in (model_dir.check_model_dir, model_dir.claim):
        with refused("was made with another recipe") as caught:
            function(tmp_path, other)
        assert str(caught.value) == (
            f"model_dir '{tmp_path}' was made with another recipe: model_options is {{}} there and "
            f"{{'scope': 5}} here; epochs is {RECIPE.epochs} there and 7 here; optimizer is 'sgd' there and "
            f"'adam' here; repeat its settings, or give another --model_dir, where "
            f"--set=start_from={tmp_path} starts from its weights"
        )
    assert (tmp_path / "recipe.json").read_bytes() == before


def test_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with refused("it has no recipe.json, but 'thesis.tex'"):
        claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    # Of the shell, for the output.
    (tmp_path / "thesis.tex").rename(tmp_path / "train.log")
    claim(tmp_path)


@pytest.mark.parametrize("inside", ["", "below/that"])
def test_file_at_model_dir_is_named(tmp_path, inside):
    (tmp_path / "file").write_text("mine")
    with refused(f"'{tmp_path / 'file'}' is not a directory"):
        claim(tmp_path / "file" / inside)
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_without_permission_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with refused(f"no permission to write to '{tmp_path}'"):
        claim(tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            None,
            "model_dir must be a folder of `lambdanet train`, got .*; it has no recipe.json",
        ),
        (b'{"model": ', "recipe.json' cannot be read: not a recipe in JSON"),
        (b"\xff\xfe", "recipe.json' cannot be read"),
        (b"{}", "recipe.json' cannot be read: not a recipe: it lacks model"),
    ],
)
def test_folder_without_readable_recipe_is_rejected(tmp_path, content, message):
    if content is not None:
        (tmp_path / "recipe.json").write_bytes(content)
    with refused(message):
        model_dir.load_trained_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "make", "read"),
    [
        ("recipe.json", os.mkfifo, model_dir.load_recipe),
        ("recipe.json", os.mkdir, claim),
        ("classes.txt", os.mkfifo, model_dir.class_names),
        ("data_dir.txt", os.mkdir, model_dir.find_data_dir),
    ],
)
def test_pipe_or_folder_instead_of_file_is_rejected(tmp_path, name, make, read):
    make(tmp_path / name)
    with refused(f"^{name} must be a regular file, got '{tmp_path / name}'$"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["plain", "a\nb\r", "\u00e4\u2028"])
def test_data_dir_is_saved_as_absolute_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert model_dir.find_data_dir(tmp_path / "run") is None
    path = model_dir.claim("run", RECIPE, data_dir=name)
    assert model_dir.find_data_dir(path) == str(tmp_path / name)
    assert model_dir.find_data_dir(path, "other") == "other"
    claim(path)
    assert model_dir.find_data_dir("run") == str(tmp_path / name)
    moved = tmp_path / "moved"
    moved.mkdir()
    model_dir.claim(path, RECIPE, data_dir="moved")
    assert model_dir.find_data_dir("run") == str(moved)
    moved.rmdir()
    wrong = f"data_dir must be given: 'run' was trained on '{moved}', which is not a directory"
    with refused(f"^{wrong}$"):
        model_dir.find_data_dir("run")


def test_paths_of_recipe_are_saved_as_absolute_ones(tmp_path, monkeypatch):
    """Also where they are gone later; published weights keep their names."""
    recipe = configs.get_recipe("finetune:lambda_resnet26t")
    start = replace(RECIPE, start_from="earlier")
    monkeypatch.chdir(tmp_path)
    for name in ("earlier", recipe.start_from):
        (tmp_path / name).mkdir()
    run = model_dir.claim(tmp_path / "run", start)
    assert model_dir.load_recipe(run).start_from == str(tmp_path / "earlier")
    tuned = model_dir.claim("tuned", recipe)
    assert model_dir.load_recipe(tuned) == recipe
    (tmp_path / "earlier").rmdir()
    model_dir.check_model_dir(run, start)
    monkeypatch.chdir("tuned")
    with refused("start_from is '.*/earlier' there and 'earlier' here"):
        model_dir.check_model_dir(run, start)


@pytest.mark.parametrize("ema_decay", [0.0, 0.5])
def test_trained_model_has_averages_if_there_are_any(tmp_path, one_block, ema_decay):
    recipe = replace(RECIPE, ema_decay=ema_decay)
    path = model_dir.claim(tmp_path / "run", recipe)
    with refused("with an epoch or more, got .*; there is no checkpoint in"):
        model_dir.load_trained_model(path)
    model = build_model(recipe)
    checkpoints = Checkpoints(
        path / "checkpoints", model, build_optimizer(recipe, model.weights, 10)
    )
    begin = model.get_weights()
    end = [weight + 1 for weight in begin]
    model.set_weights(end)
    checkpoints.save(2)  # the averages are those of the beginning
    loaded, found = model_dir.load_trained_model(path)
    assert found == recipe
    assert_equal_arrays(loaded.weights, begin if ema_decay else end)

    other = replace(recipe, model_options={"key_dim": 4})
    model_dir.claim(tmp_path / "other", other)
    (tmp_path / "other/checkpoints").symlink_to(path / "checkpoints")
    with refused("other' does not fit 'lambda_resnet_tiny': .* has the shape .*, not "):
        model_dir.load_trained_model(tmp_path / "other")
