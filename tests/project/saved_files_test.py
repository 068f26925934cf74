# SPDX-License-Identifier: Apache-2.0
"""Files that were written when all modules were in flat folders still load and give the same outputs."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from lambdanet.errors import InputError
from lambdanet.training.run import model_dir
from lambdanet.training.train import train

SAVED = Path(__file__).parents[1] / "saved"


@pytest.fixture
def run(tmp_path):
    """A run on digits that stopped after the first of two epochs, with a pattern in place of its weights."""
    with tarfile.open(SAVED / "run.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


LOAD = """
import sys
import numpy as np
import tf_keras
import lambdanet.models.zoo
model = tf_keras.models.load_model(sys.argv[1])
images = np.random.default_rng(1).normal(size=[2, 6, 6, 8]).astype("float32")
np.savez(sys.argv[2], *model(images))
"""


def test_every_layer_loads_from_a_keras_file_of_tf_keras(tmp_path):
    found, environment = tmp_path / "found.npz", {**os.environ, "LAMBDANET_KERAS": "tf_keras"}
    subprocess.run([sys.executable, "-c", LOAD, SAVED / "layers.keras", found], env=environment, check=True)
    with np.load(SAVED / "layers_outputs.npz") as expected, np.load(found) as outputs:
        assert len(expected) == len(outputs) > 20
        for name, output in zip(sorted(expected), outputs.values(), strict=True):
            np.testing.assert_allclose(output, expected[name], rtol=1e-4, atol=1e-5)


def test_a_model_dir_loads(run):
    model, recipe = model_dir.load_trained_model(run)
    assert (recipe.model, model_dir.class_names(run)) == ("lambda_resnet_tiny", [*"0123456789"])
    images = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")
    expected = np.load(run.parent / "run_outputs.npy")
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-5)


def test_a_stopped_run_of_tf_keras_cannot_resume(run, tmp_path):
    message = f"cannot be continued with Keras 3; this starts a new run .*--set=start_from={run}"
    with pytest.raises(InputError, match=message):
        train(model_dir.load_recipe(run), run, str(tmp_path))
