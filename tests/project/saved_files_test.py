# SPDX-License-Identifier: Apache-2.0
"""Files of earlier versions: they load and give the same outputs, or are refused by name."""

import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest
from refusals import refused

import lambdanet.models.zoo  # noqa: F401, which registers all layers
from lambdanet.training.run import model_dir
from lambdanet.training.train import train

SAVED = Path(__file__).parents[1] / "saved"


def extracted(name, folder):
    """The folder of a run on digits that stopped after the first of two epochs, with patterns as weights."""
    with tarfile.open(SAVED / name) as archive:
        archive.extractall(folder, filter="data")
    return folder / "run"


def test_every_layer_loads_from_a_keras_file():
    model = keras.models.load_model(SAVED / "layers.keras")
    outputs = model(
        np.random.default_rng(1).normal(size=[2, 6, 6, 8]).astype("float32")
    )
    with np.load(SAVED / "layers_outputs.npz") as expected:
        assert len(expected) == len(outputs) > 20
        for name, output in zip(sorted(expected), outputs, strict=True):
            np.testing.assert_allclose(output, expected[name], rtol=1e-4, atol=1e-5)


def test_a_model_dir_loads(tmp_path):
    run = extracted("run.tar.gz", tmp_path)
    model, recipe = model_dir.load_trained_model(run)
    assert (recipe.model, model_dir.class_names(run)) == (
        "lambda_resnet_tiny",
        [*"0123456789"],
    )
    images = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")
    np.testing.assert_allclose(
        model(images), np.load(tmp_path / "run_outputs.npy"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_stopped_run_resumes(tmp_path, capsys):
    run = extracted("run.tar.gz", tmp_path)
    assert train(model_dir.load_recipe(run), run)["step"] == 4
    assert "after epoch 1 of 2, step 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "use",
    [model_dir.load_trained_model, lambda run: train(model_dir.load_recipe(run), run)],
)
def test_a_run_of_tf_keras_is_refused_by_name(use, tmp_path):
    message = (
        r"was trained with tf_keras by an earlier version.* give another --model_dir$"
    )
    with refused(message):
        use(extracted("run_of_tf_keras.tar.gz", tmp_path))
