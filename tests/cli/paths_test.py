# SPDX-License-Identifier: Apache-2.0
"""Paths of every command: on this machine alone, or also in buckets, which local folders never replace."""

import importlib

import pytest
from limits import DETECTION
from refusals import refused
from small_models import linear_model
from training_runs import ON_TENSORFLOW

from lambdanet import cli
from lambdanet.core.command_line import parse
from lambdanet.core.files import absolute, cache_dir
from lambdanet.training.convert import convert
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run.model_dir import check_model_dir
from lambdanet.training.serving.exported_model import load_classifier

# The paths of each command, "*" as an argument, and behind a bar those that may be on gs://.
PATHS = """
lambdanet convert: checkpoint out class_map |
lambdanet check: out | data_dir
lambdanet train: model_dir class_map | data_dir
lambdanet evaluate: model_dir out | data_dir
lambdanet export: model_dir class_names calibration | out data_dir
lambdanet explain: * out saved_model model_dir |
lambdanet predict: * out | saved_model
lambdanet predict-many: | saved_model out data_dir
lambdanet pseudo-label: | saved_model out data_dir
python -m lambdanet.detection.check: | annotations images
python -m lambdanet.detection.evaluate: images out | saved_model annotations
python -m lambdanet.detection.export: | model_dir out checkpoint annotations
python -m lambdanet.detection.predict: * out | saved_model
python -m lambdanet.detection.shapes: out |
python -m lambdanet.detection.train: | model_dir config_file
"""
MODULES = [f"lambdanet.detection.{name}" for name in DETECTION]
COMMANDS = [importlib.import_module(module).COMMAND for module in MODULES]
BUCKET = "s3://bucket/x"


@pytest.mark.parametrize(
    "command", [*cli.COMMANDS, *COMMANDS], ids=lambda command: command.invocation
)
def test_buckets_are_refused_where_paths_are_local(command):
    rows = dict(row.split(": ") for row in PATHS.strip().splitlines())
    local, remote = rows.get(command.invocation, "|").split("|")
    shown = {flag.name for flag in command.flags if flag.value.endswith("_OR_URL")}
    assert shown == {*remote.split()}
    every = {name for row in rows.values() for name in row.replace("|", "").split()}
    every &= {flag.name for flag in command.flags}
    assert every == {*local.split(), *remote.split()} - {"*"}
    for name in local.split():
        word = BUCKET if name == "*" else f"--{name}={BUCKET}"
        with refused(f"must be a path on this machine, got '{BUCKET}'"):
            parse(command, [word])


def test_buckets_are_refused_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = f"must be a path on this machine, got '{BUCKET}'"
    with refused(f"model_dir {message}"):
        check_model_dir(BUCKET)
    with refused(f"out {message}"):
        convert("lambda_resnet26t", out=BUCKET)
    with refused("model_dir must be"):
        evaluate(BUCKET)
    monkeypatch.setenv("LAMBDANET_HOME", BUCKET)
    with refused(f"LAMBDANET_HOME {message}"):
        cache_dir()
    with refused(f"path must be on this machine or gs://..., got '{BUCKET}'"):
        load_classifier(BUCKET)
    assert absolute("gs://bucket/x/") == "gs://bucket/x"
    assert not list(tmp_path.iterdir())


@ON_TENSORFLOW
def test_saved_models_are_written_to_other_file_systems(tmp_path, capsys):
    import tensorflow as tf

    from lambdanet.training.serving.export import export_saved_model

    model = linear_model((8, 8, 3), 2)
    path = f"file://{tmp_path}/tiny"
    export_saved_model(model, path, 8, [0.5] * 3, [0.5] * 3, ["cat", "dog"])
    assert f"to {path}\noldest runtime: TensorFlow" in capsys.readouterr().out
    names = tf.saved_model.load(path).class_names().numpy()
    assert names.tolist() == [b"cat", b"dog"]
