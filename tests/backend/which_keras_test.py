# SPDX-License-Identifier: Apache-2.0
"""The choice of a Keras, and one line for what does not work with it."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from source_tree import ROOT

import lambdanet
from lambdanet import which_keras
from lambdanet.errors import InputError


@pytest.fixture
def no_choice(monkeypatch):
    monkeypatch.setattr(which_keras, "_used", None)
    monkeypatch.delenv(which_keras.VARIABLE, raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    return monkeypatch


def python(*words, **variables):
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, *words], env=env, cwd=ROOT, capture_output=True, text=True)


def test_choice_after_the_first_use(no_choice):
    assert lambdanet.LambdaLayer
    lambdanet.use("keras")
    with pytest.raises(InputError, match="must come before the first use .* which took keras"):
        lambdanet.use("tf_keras")


def test_choice_by_the_layers_in_use(no_choice):
    no_choice.setitem(sys.modules, "lambdanet.backend", SimpleNamespace(KERAS="tf_keras"))
    assert which_keras.chosen() == "tf_keras"
    no_choice.delitem(sys.modules, "lambdanet.backend")
    assert which_keras.chosen() == "keras"


def test_wrong_names(no_choice):
    with pytest.raises(InputError, match="unknown Keras 'keras3'.*keras"):
        lambdanet.use("keras3")
    no_choice.setenv(which_keras.VARIABLE, "tf.keras")
    with pytest.raises(InputError, match="unknown Keras in LAMBDANET_KERAS 'tf.keras'.*tf_keras"):
        which_keras.chosen()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("lambdanet.training.run.run", "training needs Keras 3, got tf_keras"),
        ("lambdanet.training.evaluate", "evaluate needs Keras 3, got tf_keras"),
        ("lambdanet.training.serving.export", "export needs Keras 3, got tf_keras"),
        ("lambdanet.detection.model_garden", "lambdanet.detection needs tf_keras, got Keras 3"),
    ],
)
def test_modules_that_need_one_keras(module, message, no_choice):
    no_choice.delitem(sys.modules, module, raising=False)
    other = "keras" if "needs tf_keras" in message else "tf_keras"
    no_choice.setenv(which_keras.VARIABLE, other)
    with pytest.raises(InputError, match=f"^{message} by LAMBDANET_KERAS$"):
        importlib.import_module(module)
    no_choice.setattr(which_keras, "_used", other)
    with pytest.raises(InputError, match=f"^{message} by use$"):
        importlib.import_module(module)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("lambdanet.training.run.run", "training needs Keras on tensorflow or jax"),
        ("lambdanet.training.evaluate", "evaluate needs Keras on tensorflow or jax"),
        ("lambdanet.training.serving.export", "export needs Keras on tensorflow"),
    ],
)
def test_backend_that_a_part_does_not_support(module, message, no_choice):
    no_choice.setattr(which_keras, "keras_3_backend", lambda: "torch")
    no_choice.delitem(sys.modules, module, raising=False)
    with pytest.raises(InputError, match=f"^{message}, got torch; set KERAS_BACKEND=tensorflow$"):
        importlib.import_module(module)


@pytest.mark.parametrize(
    ("backend", "installed", "message"),
    [
        (
            "tensorflow",
            (),
            "lambdanet needs a backend of Keras: pip install 'lambdanet[tensorflow]', or [jax] or [torch]",
        ),
        (
            "tensorflow",
            ("jax",),
            "the backend of Keras, tensorflow, is not installed: pip install 'lambdanet[tensorflow]', or set "
            "KERAS_BACKEND=jax",
        ),
        (
            "jax",
            ("tensorflow", "torch"),
            "the backend of Keras, jax, is not installed: pip install 'lambdanet[jax]', or set "
            "KERAS_BACKEND=tensorflow",
        ),
        (
            "pytorch",
            which_keras.BACKENDS,
            "the backend of Keras (KERAS_BACKEND) must be tensorflow, jax or torch, got 'pytorch'",
        ),
    ],
)
def test_backend_that_is_not_installed(backend, installed, message):
    missing = [name for name in which_keras.BACKENDS if name not in installed]
    code = f"""
import sys
sys.modules |= dict.fromkeys({missing})
from lambdanet import cli
sys.exit([cli.main(["list", "mobilenet_v2"]), cli.main(["info", "mobilenet_v2"])] != [0, 2])
"""
    shown = python("-c", code, KERAS_BACKEND=backend)
    assert shown.returncode == 0, shown.stderr
    assert "mobilenet_v2" in shown.stdout and shown.stderr == f"lambdanet: error: {message}\n"
