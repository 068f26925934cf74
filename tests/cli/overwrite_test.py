# SPDX-License-Identifier: Apache-2.0
"""Outputs that exist: each command names one and `--overwrite`, before it reads a model."""

import os
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

# Commands with a file of their output; none has its model.
COMMANDS = """
a.csv: predict --saved_model=none --out=out/a.csv x.png
x.html: explain --saved_model=none --out=out x.png
pictures.html: check --data_dir=none --out=out
wrong.csv: evaluate --model_dir=run --out=out
saved_model.pb: export --model_dir=none --out=out
saved_model.pb: export --model=resnet_50 --weights=none --out=out
model.tflite: export --model_dir=none --out=out --format=litert
model.onnx: export --model=resnet_50 --weights=none --out=out --format=onnx
"""


@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_existing_output_is_named_first(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_picture(tmp_path / "x.png", (250, 40, 0))
    model_dir.claim(tmp_path / "run", recipe_with("digits", input_size=16))
    name, *words = line.replace(": ", " ").split()
    Path("out").mkdir()
    file = Path("out", name)
    file.write_text("mine")
    status = cli.main(words)
    assert_refused(status, f"out '.*{name}' exists; --overwrite replaces", capsys)
    status = cli.main([*words, "--overwrite"])
    assert_refused(status, "error: (?!out)", capsys)
    assert os.listdir("out") == [name] and file.read_text() == "mine"


def test_only_outputs_are_replaced(tmp_path):
    with refused("out must be a path for a file"):
        files.check_new(tmp_path, overwrite=True)
    (tmp_path / "model").touch()
    files.check_output_dir(tmp_path, files=["model"], overwrite=True)
    (tmp_path / "notes").touch()
    with refused("is not empty, it has 'notes'"):
        files.check_output_dir(tmp_path, files=["model"], overwrite=True)


def write(path):
    with files.atomic_dir(str(path)) as staging:
        Path(staging, "new").touch()
        assert os.listdir(path) == ["old"]


def test_folder_is_replaced_by_a_whole_one(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    link = tmp_path / "link"
    link.symlink_to("folder")
    rename = tf.io.gfile.rename

    def fail(source, target, overwrite=False):
        if ".partial-" in source:
            raise tf.errors.PermissionDeniedError(None, None, "no permission")
        rename(source, target, overwrite)

    with monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "rename", fail)
        with refused("cannot be written: no permission"):
            write(folder)
    assert os.listdir(folder) == ["old"]
    write(link)
    assert link.is_symlink() and os.listdir(folder) == ["new"]
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_folder_that_appears_meanwhile_is_not_replaced(tmp_path):
    with refused("cannot be written"), files.atomic_dir(str(tmp_path / "a")):
        (tmp_path / "a/old").mkdir(parents=True)
    assert os.listdir(tmp_path / "a") == ["old"]
