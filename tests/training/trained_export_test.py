# SPDX-License-Identifier: Apache-2.0
"""A run, of either backend, is exported by one command, and what that writes computes the same."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers import noise
from training_runs import recipe_with, write_run

from lambdanet.models.preprocessing import Preprocessing

RECIPE = recipe_with("digits", ema_decay=0.5)
IMAGES = noise(1, 32, 32, 3)


@pytest.mark.jax
@pytest.mark.slow
def test_run_is_exported_by_one_command(data_dir, tmp_path):
    """TensorFlow reads the checkpoints of both backends."""
    model = write_run(tmp_path / "run", RECIPE, list("0123456789"), data_dir)
    environment = dict(os.environ)
    del environment["TF_CPP_MIN_LOG_LEVEL"]
    out = tmp_path / "out"
    words = ["export", f"--model_dir={tmp_path / 'run'}", f"--out={out}"]
    done = subprocess.run(
        [sys.executable, "-m", "lambdanet.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr == "lambdanet: importing tensorflow, which takes seconds\n"
    serve = tf.saved_model.load(str(out)).signatures["serving_default"]
    found = serve(tf.constant(IMAGES))["probabilities"]
    preprocessing = Preprocessing(32, RECIPE.mean, RECIPE.std)
    pixels = preprocessing.normalize(IMAGES / np.float32(255))
    logits = model.predict_on_batch(np.array(pixels))
    np.testing.assert_allclose(found, tf.nn.softmax(logits), atol=1e-5)
