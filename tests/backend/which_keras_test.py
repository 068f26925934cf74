# SPDX-License-Identifier: Apache-2.0
"""The backend of Keras: one line for what does not work on it, or is not installed."""

import importlib
import sys

import pytest
from processes import run_code
from refusals import refused

from lambdanet.core import which_keras


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("lambdanet.training.run.loop", "training needs Keras on tensorflow or jax"),
        ("lambdanet.training.evaluate", "evaluate needs Keras on tensorflow or jax"),
        ("lambdanet.training.serving.export", "export needs Keras on tensorflow"),
        (
            "lambdanet.detection.model_garden",
            "lambdanet.detection needs Keras on tensorflow",
        ),
    ],
)
def test_backend_that_a_part_does_not_support(module, message, monkeypatch):
    monkeypatch.setattr(which_keras, "keras_3_backend", lambda: "torch")
    monkeypatch.delitem(sys.modules, module, raising=False)
    with refused(f"^{message}, got torch; set KERAS_BACKEND=tensorflow$"):
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
    shown = run_code(code, KERAS_BACKEND=backend)
    assert shown.returncode == 0, shown.stderr
    assert "mobilenet_v2" in shown.stdout and shown.stderr.endswith(
        f"lambdanet: error: {message}\n"
    )
