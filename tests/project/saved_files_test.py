# SPDX-License-Identifier: Apache-2.0
"""Files that were written when all modules were in flat folders still load and give the same outputs."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import tf_keras as keras

import lambdanet.models.zoo  # noqa: F401 (registers the layers)
from lambdanet.training.run import model_dir
from lambdanet.training.train import train

SAVED = Path(__file__).parents[1] / "saved"


@pytest.fixture
def run(tmp_path):
    """A run on digits that stopped after the first of two epochs, with a pattern in place of its weights."""
    with tarfile.open(SAVED / "run.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def test_every_layer_loads_from_a_keras_file():
    model = keras.models.load_model(SAVED / "layers.keras")
    images = np.random.default_rng(1).normal(size=[2, 6, 6, 8]).astype("float32")
    with np.load(SAVED / "layers_outputs.npz") as expected:
        assert len(expected) == len(model.outputs) > 20
        for name, output in zip(sorted(expected), model(images), strict=True):
            np.testing.assert_allclose(output, expected[name], rtol=1e-4, atol=1e-5)


def test_a_model_dir_loads(run):
    model, recipe = model_dir.load_trained_model(run)
    assert (recipe.model, model_dir.class_names(run)) == ("lambda_resnet_tiny", [*"0123456789"])
    images = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")
    expected = np.load(run.parent / "run_outputs.npy")
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-5)


def test_a_stopped_run_resumes(run, tmp_path, capsys):
    result = train(model_dir.load_recipe(run), run, str(tmp_path))
    assert (result["epoch"], result["step"]) == (2, 4)
    assert "after epoch 1 of 2, step 2" in capsys.readouterr().out
