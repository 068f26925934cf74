# SPDX-License-Identifier: Apache-2.0
"""The choice of a Keras, and one line for what does not work with it."""

import importlib
import os
import subprocess
import sys

import pytest
from source_tree import ROOT

import lambdanet
from lambdanet import cli, which_keras
from lambdanet.detection import model_garden
from lambdanet.errors import InputError
from lambdanet.training import benchmark, data, serving


@pytest.fixture
def no_choice(monkeypatch):
    monkeypatch.setattr(which_keras, "_used", None)
    monkeypatch.delenv(which_keras.VARIABLE, raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    return monkeypatch


def python(*words, **variables):
    env = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    command = [sys.executable, *words]
    return subprocess.run(command, env={**env, **variables}, cwd=ROOT, capture_output=True, text=True)


def test_choice_after_the_first_use(no_choice):
    assert lambdanet.LambdaLayer
    lambdanet.use("tf_keras")
    with pytest.raises(InputError, match="must come before the first use .* which took tf_keras"):
        lambdanet.use("keras")


def test_choice_stays_when_keras_3_is_imported_later(no_choice):
    no_choice.setenv("KERAS_BACKEND", "jax")
    no_choice.setitem(sys.modules, "keras", None)
    assert which_keras.chosen() == "tf_keras" == lambdanet.backend.KERAS
    no_choice.delitem(sys.modules, "lambdanet.backend")
    assert which_keras.chosen() == "keras"


def test_wrong_names(no_choice):
    with pytest.raises(InputError, match="unknown Keras 'keras3'.*keras"):
        lambdanet.use("keras3")
    no_choice.setenv(which_keras.VARIABLE, "tf.keras")
    with pytest.raises(InputError, match="unknown Keras in LAMBDANET_KERAS 'tf.keras'.*tf_keras"):
        which_keras.chosen()


@pytest.mark.parametrize("module", [data, serving, benchmark, model_garden])
def test_modules_that_need_tf_keras(module, no_choice):
    no_choice.setenv(which_keras.VARIABLE, "keras")
    name = module.__name__.removesuffix(".model_garden")
    message = f"^{name} needs tf_keras, got Keras 3 by LAMBDANET_KERAS; set LAMBDANET_KERAS=tf_keras$"
    with pytest.raises(InputError, match=message):
        importlib.reload(module)
    with pytest.raises(InputError, match="got Keras 3 by use;"):
        no_choice.setattr(which_keras, "_used", "keras")
        which_keras.require_tf_keras(name)


def test_command_where_keras_3_is_chosen(no_choice, capsys):
    no_choice.setenv(which_keras.VARIABLE, "keras")
    assert cli.main(["list", "mobilenet_v2", "--help"]) == 0
    capsys.readouterr()
    assert cli.main(["list", "mobilenet_v2"]) == 2
    assert capsys.readouterr().err == (
        "lambdanet: error: `lambdanet list` needs tf_keras, got Keras 3 by LAMBDANET_KERAS; "
        "set LAMBDANET_KERAS=tf_keras\n"
    )


def test_command_with_another_backend_of_keras():
    shown = python("-m", "lambdanet.cli", "list", "mobilenet_v2", KERAS_BACKEND="jax")
    assert shown.returncode == 0 and "mobilenet_v2" in shown.stdout and shown.stderr == ""


def test_tf_keras_within_keras_3():
    shown = python(
        str(ROOT / "tests/programs/refuse_tf_keras.py"), KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3"
    )
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.split(": ", 1) for line in shown.stdout.splitlines())
    hint = "lambdanet uses Keras 3: build the model with `import keras`, or set LAMBDANET_KERAS=tf_keras"
    assert "is called by a tf_keras model or layer, Model, " in lines["model"] and hint in lines["model"]
    assert lines["tensor"] == f"an input of SqueezeExcite is a tf_keras KerasTensor; {hint}"
    assert lines["regularizer"] == f"kernel_regularizer is a tf_keras L2; {hint}"
    assert "which took keras; or set LAMBDANET_KERAS=tf_keras" in lines["late"]
