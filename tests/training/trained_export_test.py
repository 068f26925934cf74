# SPDX-License-Identifier: Apache-2.0
"""A run, of either backend, is exported by one command, and what that writes computes the same."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from lambdanet import configs
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.run import model_dir
from lambdanet.training.train import train

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    **{
        "epochs": 1,
        "train_split": "train[:32]",
        "eval_split": "test[:16]",
        "global_batch_size": 16,
    },
    **{"input_size": 32, "ema_decay": 0.5},
)
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from lambdanet import cli; sys.exit(cli.main(sys.argv[1:]))",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir):
    """The folder of a run."""
    path = tmp_path_factory.mktemp("run")
    train(RECIPE, path, data_dir)
    return path


@pytest.mark.parametrize("format", ["saved_model", "litert", "onnx"])
@pytest.mark.slow
def test_run_is_exported_by_one_command(run, tmp_path, format):
    out = tmp_path / "out"
    words = ["export", f"--model_dir={run}", f"--out={out}", f"--format={format}"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    done = subprocess.run(
        [*COMMAND, *words], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    images = np.random.default_rng(0).integers(0, 256, [1, 32, 32, 3], dtype=np.uint8)
    model, _ = model_dir.load_trained_model(run)
    pixels = Preprocessing(32, RECIPE.mean, RECIPE.std).normalize(
        images / np.float32(255)
    )
    logits = model.predict_on_batch(np.array(pixels))
    probabilities = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(_run(out, images, format), probabilities, atol=1e-5)


def _run(out, images, format):
    if format == "saved_model":
        return tf.saved_model.load(str(out)).signatures["serving_default"](
            tf.constant(images)
        )["probabilities"]
    if format == "litert":
        from ai_edge_litert.interpreter import Interpreter

        runner = Interpreter(str(out / "model.tflite")).get_signature_runner()
        return runner(images=images)["probabilities"]
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(out / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    return session.run(["probabilities"], {"images": images})[0]
