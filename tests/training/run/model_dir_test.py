# SPDX-License-Identifier: Apache-2.0
"""The model_dir: recipe, permissions, and the trained model."""

import dataclasses
import os

import numpy as np
import pytest

from lambdanet import configs, files
from lambdanet.errors import InputError
from lambdanet.training.run import model_dir
from lambdanet.training.run.build import build_model, build_optimizer
from lambdanet.training.run.checkpoints import Checkpoints

RECIPE = configs.get_recipe("digits")


def test_claim_writes_only_the_recipe(tmp_path):
    path = model_dir.claim(tmp_path / "a" / "b", RECIPE)
    assert path == tmp_path / "a" / "b"
    assert [file.name for file in path.iterdir()] == ["recipe.json"]
    assert model_dir.load_recipe(path) == RECIPE
    assert model_dir.claim(path, RECIPE) == path


def test_claim_removes_partial_checkpoints(tmp_path):
    for name in (
        "checkpoints/.ckpt-8.npz.1.partial",
        "best/.ckpt-4.npz.2.partial",
        "logs/.ckpt-4.npz.3.partial",
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "checkpoints" / "ckpt-4.npz").touch()
    model_dir.claim(tmp_path, RECIPE)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert left == {"checkpoints/ckpt-4.npz", "logs/.ckpt-4.npz.3.partial"}


def test_other_recipe_is_rejected_with_differences(tmp_path):
    model_dir.claim(tmp_path, RECIPE)
    before = (tmp_path / "recipe.json").read_bytes()
    other = dataclasses.replace(
        RECIPE, epochs=7, optimizer="adam", model_options={"scope": 5}
    )
    for function in (model_dir.check_model_dir, model_dir.claim):
        with pytest.raises(InputError) as caught:
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
    for function in (model_dir.check_model_dir, model_dir.claim):
        with pytest.raises(InputError, match="it has no recipe.json, but 'thesis.tex'"):
            function(tmp_path, RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    # Of the shell, for the output.
    (tmp_path / "thesis.tex").rename(tmp_path / "train.log")
    model_dir.claim(tmp_path, RECIPE)


@pytest.mark.parametrize("inside", ["", "below", "below/that"])
def test_file_at_model_dir_is_named(tmp_path, inside):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=f"'{tmp_path / 'file'}' is not a directory"):
        model_dir.claim(tmp_path / "file" / inside, RECIPE)
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_without_permission_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=f"no permission to write to '{tmp_path}'"):
        model_dir.check_model_dir(tmp_path / "new", RECIPE)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="needs a file system that takes no folders"
)
def test_folder_rejected_by_system_is_named():
    with pytest.raises(
        InputError, match="model_dir '/proc/lambdanet' cannot be written: "
    ):
        model_dir.claim("/proc/lambdanet", RECIPE)


def test_check_model_dir_writes_nothing(tmp_path):
    assert (
        model_dir.check_model_dir(tmp_path / "new" / "run", RECIPE)
        == tmp_path / "new" / "run"
    )
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
    with pytest.raises(InputError, match=message):
        model_dir.load_trained_model(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("recipe.json", model_dir.load_recipe),
        ("recipe.json", lambda path: model_dir.claim(path, RECIPE)),
        ("classes.txt", model_dir.class_names),
        ("data_dir.txt", model_dir.find_data_dir),
    ],
)
def test_pipe_or_folder_instead_of_file_is_rejected(tmp_path, make, name, read):
    make(tmp_path / name)
    with pytest.raises(
        InputError, match=f"^{name} must be a regular file, got '{tmp_path / name}'$"
    ):
        read(tmp_path)


def test_missing_folder_is_rejected(tmp_path):
    with pytest.raises(
        InputError,
        match=f"model_dir must be .*, got '{tmp_path / 'no'}'; it is not a directory",
    ):
        model_dir.load_recipe(tmp_path / "no")


@pytest.mark.parametrize("name", ["plain", "a\nb\r", "\u00e4\u2028"])
def test_data_dir_is_saved_as_absolute_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert model_dir.find_data_dir(tmp_path / "run") is None
    path = model_dir.claim("run", RECIPE, data_dir=name)
    assert model_dir.find_data_dir(path) == str(tmp_path / name)
    assert model_dir.find_data_dir(path, "other") == "other"
    model_dir.claim(path, RECIPE)
    assert model_dir.find_data_dir("run") == str(tmp_path / name)
    (tmp_path / "moved").mkdir()
    model_dir.claim(path, RECIPE, data_dir="moved")
    assert model_dir.find_data_dir("run") == str(tmp_path / "moved")
    (tmp_path / "moved").rmdir()
    with pytest.raises(InputError) as caught:
        model_dir.find_data_dir("run")
    wrong = f"data_dir must be given: 'run' was trained on '{tmp_path / 'moved'}', which is not a directory"
    assert str(caught.value) == wrong


def test_failed_write_keeps_old_file(tmp_path, monkeypatch):
    path = tmp_path / "text"
    files.write_atomic(path, "old\n")

    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new\n")
    assert path.read_text() == "old\n" and [
        file.name for file in tmp_path.iterdir()
    ] == ["text"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with averages of the weights, its averages shifted by 1 from its weights."""
    recipe = dataclasses.replace(RECIPE, ema_decay=0.5)
    path = model_dir.claim(tmp_path_factory.mktemp("run"), recipe)
    model = build_model(recipe)
    checkpoints = Checkpoints(path / "checkpoints", model, build_optimizer(recipe, 10))
    checkpoints.save(1)  # averages and weights are equal so far
    weights = [variable.numpy() for variable in model.trainable_variables]
    for variable in model.trainable_variables:
        variable.assign_add(np.ones(variable.shape, np.float32))
    checkpoints.save(2)
    return path, weights


def test_trained_model_has_averages(trained):
    path, averages = trained
    model, recipe = model_dir.load_trained_model(path)
    assert recipe.ema_decay == 0.5 and model.name == RECIPE.model
    for variable, average in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(variable.numpy(), average)


def test_trained_model_without_averages_has_weights(tmp_path):
    path = model_dir.claim(tmp_path, RECIPE)
    model = build_model(RECIPE)
    Checkpoints(path / "checkpoints", model, build_optimizer(RECIPE, 10)).save(3)
    loaded, recipe = model_dir.load_trained_model(path)
    assert recipe == RECIPE
    for variable, weight in zip(loaded.variables, model.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), weight.numpy())


def test_checkpoint_of_other_model_is_rejected(trained, tmp_path):
    other = model_dir.claim(
        tmp_path, dataclasses.replace(RECIPE, model_options={"key_dim": 4})
    )
    (other / "checkpoints").symlink_to(trained[0] / "checkpoints")
    message = f"model_dir '{other}' does not fit 'lambda_resnet_tiny': .* has the shape .*, not "
    with pytest.raises(InputError, match=message):
        model_dir.load_trained_model(other)


def test_folder_without_checkpoint_is_rejected(tmp_path):
    model_dir.claim(tmp_path, RECIPE)
    with pytest.raises(
        InputError, match="with an epoch or more, got .*; there is no checkpoint in"
    ):
        model_dir.load_trained_model(tmp_path)
