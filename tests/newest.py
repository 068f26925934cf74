# SPDX-License-Identifier: Apache-2.0
"""Tests of layers, models, weights and training with the newest Keras and JAX, without TensorFlow.

`make test-newest` runs them in an environment of their own, with two devices. `lambdanet train` reads its
data with TensorFlow, so here `keras.Model.fit` trains, with the model, loss, optimizer and step of a recipe.
"""

import dataclasses
import importlib.util

import jax
import keras
import numpy as np
import pytest
from processes import output_of

import lambdanet
from lambdanet import configs
from lambdanet.models.weights import weight_files
from lambdanet.training.run.build import build_model, build_optimizer, compile_model

SIDE, CLASSES = 32, 10  # of the recipe `digits`


def bars(count):
    """Pictures of noise with a bright row, by whose place they are labeled."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % CLASSES
    pictures = random.normal(0, 0.3, [count, SIDE, SIDE, 3])
    pictures[np.arange(count), 2 * labels + 3] += 2
    return pictures.astype("float32"), labels


def test_environment_is_jax_alone():
    assert importlib.util.find_spec("tensorflow") is None
    assert keras.config.backend() == "jax" and len(jax.devices()) == 2


@pytest.mark.slow
def test_layers_pass_the_tests_of_keras():
    output_of("keras_tests.py")


@pytest.mark.slow
def test_models_weights_and_pictures(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, [2, 50, 41, 1], np.uint8)
    np.savez(tmp_path / "pictures.npz", gray=picture)
    output_of("use_without_tensorflow.py", tmp_path)


@pytest.mark.slow
def test_recipe_trains_on_two_devices(tmp_path):
    recipe = dataclasses.replace(
        configs.get_recipe("digits"),
        **{"mean": (0.0,) * 3, "std": (1.0,) * 3, "learning_rate": 0.05},
        **{
            "ema_decay": 0.5,
            "accumulate_steps": 2,
            "remat": True,
            "warmup_epochs": 0.0,
            "epochs": 8,
        },
    )
    pictures, labels = bars(80)
    with keras.distribution.DataParallel(auto_shard_dataset=False).scope():
        model = build_model(recipe)
        compile_model(recipe, model, build_optimizer(recipe, model.weights, 2))
        history = model.fit(
            pictures, labels, batch_size=40, epochs=recipe.epochs, verbose=0
        ).history
        assert {len(weight.value.devices()) for weight in model.weights} == {2}
        predictions = model.predict(pictures, batch_size=40, verbose=0)
    assert (
        history["loss"][-1] < 0.7 * history["loss"][0] and history["accuracy"][-1] > 0.8
    ), history
    weight_files.save(model, tmp_path / "weights.safetensors")
    loaded = lambdanet.create_model(
        recipe.model, CLASSES, input_size=SIDE, weights=tmp_path / "weights.safetensors"
    )
    np.testing.assert_allclose(
        loaded.predict(pictures, verbose=0), predictions, atol=1e-4
    )
