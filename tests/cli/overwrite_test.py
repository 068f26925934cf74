# SPDX-License-Identifier: Apache-2.0
"""Outputs that exist: each command names one and `--overwrite`, before it reads a model."""

import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from helpers import write_picture
from refusals import refused
from refused_commands import assert_refused
from training_runs import recipe_with

from lambdanet import cli
from lambdanet.core import files
from lambdanet.training.run import model_dir

# A command, a file of its output, and the error without one, as there is no model.
COMMANDS = [
    ("predict --saved_model=none --out=out x.png", "x_prediction.png", "saved_model"),
    ("predict --saved_model=none --out=out x.png", "x_mask.png", "saved_model"),
    ("predict --saved_model=none --out=out x.png", "x_overlay.png", "saved_model"),
    ("predict --saved_model=none --out=out/a.csv x.png", "a.csv", "saved_model"),
    ("explain --saved_model=none --out=out x.png", "x.html", "saved_model"),
    ("evaluate --model_dir=run --out=out", "wrong.csv", "there is no checkpoint"),
    ("export --model_dir=none --out=out", "saved_model.pb", "model_dir"),
    (
        "export --model=resnet_50 --weights=none --out=out",
        "saved_model.pb",
        "weights",
    ),
    ("export --model_dir=none --out=out --format=litert", "model.tflite", "model_dir"),
    (
        "export --model=resnet_50 --weights=none --out=out --format=onnx",
        "model.onnx",
        "weights",
    ),
]


@pytest.mark.parametrize(("words", "name", "missing"), COMMANDS)
def test_existing_output_is_named_before_a_model_is_read(
    words, name, missing, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "x.png", (250, 40, 0))
    model_dir.claim(tmp_path / "run", recipe_with("digits", input_size=16))
    Path("out").mkdir()
    file = Path("out", name)
    file.write_text("mine")
    message = f"out '.*{name}' exists; --overwrite replaces"
    assert assert_refused(cli.main(words.split()), message, capsys) == ""
    status = cli.main([*words.split(), "--overwrite"])
    assert_refused(status, f"error: .*{missing}", capsys)
    assert os.listdir("out") == [name] and file.read_text() == "mine"


@pytest.mark.parametrize("name", ["a.csv", "out/x_prediction.png"])
def test_folder_is_not_replaced_by_a_file(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "x.png", (250, 40, 0))
    Path(name).mkdir(parents=True)
    words = ["--saved_model=none", f"--out={name.split('/')[0]}", "--overwrite"]
    status = cli.main(["predict", *words, "x.png"])
    assert_refused(status, f"out must be a path for a file, got '.*{name}'", capsys)


def test_folder_with_other_files_is_not_replaced(tmp_path):
    for name in ("model", "notes"):
        (tmp_path / name).touch()
    with refused("is not empty, it has 'notes'"):
        files.check_output_dir(tmp_path, files=["model"], overwrite=True)
    (tmp_path / "notes").unlink()
    files.check_output_dir(tmp_path, files=["model"], overwrite=True)
    with refused("/model' exists; --overwrite"):
        files.check_output_dir(tmp_path, files=["model"])


def write(path, content):
    with files.atomic_dir(str(path)) as staging:
        Path(staging, "model").write_text(content)
        assert not path.is_dir() or read(path) == "old"


def read(path):
    (file,) = path.iterdir()
    return file.read_text()


def test_folder_is_replaced_when_the_new_one_is_whole(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("folder")
    write(tmp_path / "folder", "old")
    write(link, "new")
    assert link.is_symlink() and read(link) == "new"
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_folder_remains_where_the_new_one_fails(tmp_path, monkeypatch):
    """In the middle of writing, and at the last step."""
    folder = tmp_path / "folder"
    write(folder, "old")
    with pytest.raises(ZeroDivisionError), files.atomic_dir(str(folder)) as new:
        Path(new, "model").write_text("new")
        raise ZeroDivisionError
    rename = tf.io.gfile.rename

    def fail(source, target, overwrite=False):
        if ".partial-" in source:
            raise tf.errors.PermissionDeniedError(None, None, "no permission")
        rename(source, target, overwrite)

    monkeypatch.setattr(tf.io.gfile, "rename", fail)
    with refused("cannot be written: no permission"):
        write(folder, "new")
    assert read(folder) == "old" and os.listdir(tmp_path) == ["folder"]


def test_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    with refused("cannot be written"), files.atomic_dir(str(tmp_path / "a")) as new:
        shutil.copytree(new, tmp_path / "a")
        (tmp_path / "a" / "model").write_text("old")
    assert read(tmp_path / "a") == "old"
