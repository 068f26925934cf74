# SPDX-License-Identifier: Apache-2.0
"""`as_tf_keras`: Keras 3 networks in trainings, files and strategies of tf_keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from helpers import assert_equal_arrays
from numpy.testing import assert_allclose
from processes import result_of
from programs.small_model import TWO_BLOCKS
from refusals import refused

import lambdanet
from lambdanet.models import zoo
from lambdanet.models.tf_keras_model import TfKerasModel

NAME = "lambda_resnet_tiny"
IMAGES = np.random.default_rng(0).normal(size=[16, 64, 64, 3]).astype("float32")
LABELS = np.arange(16) % 4


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
    monkeypatch.setitem(zoo.MODELS, NAME, TWO_BLOCKS)
    keras.utils.set_random_seed(0)


def network(**options):
    return lambdanet.create_model(NAME, num_classes=4, input_size=64, **options)


def compiled(model):
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        tf_keras.optimizers.SGD(0.05, momentum=0.9),
        loss,
        metrics=["accuracy"],
    )
    return model


def test_it_computes_as_the_network():
    inside = network(kernel_regularizer=keras.regularizers.L2(1e-3))
    model = lambdanet.as_tf_keras(inside)
    np.testing.assert_array_equal(model(IMAGES), inside(IMAGES))
    np.testing.assert_array_equal(
        model.predict(IMAGES, verbose=0), inside.predict(IMAGES, verbose=0)
    )
    assert model.count_params() == inside.count_params()
    assert_allclose(sum(model.losses), sum(inside.losses), rtol=1e-6)
    assert len(model.losses) == len(inside.losses) > 5
    for ours, theirs in (
        (model.trainable_weights, inside.trainable_weights),
        (model.weights, inside.weights),
    ):
        for variable, weight in zip(ours, theirs, strict=True):
            assert variable is weight.value


@pytest.mark.slow
def test_a_step_equals_that_of_keras_3():
    models = network(), network()
    models[1].set_weights(models[0].get_weights())
    ours = compiled(lambdanet.as_tf_keras(models[0]))
    models[1].compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    for model in (ours, models[1]):
        model.fit(IMAGES, LABELS, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for weight, other in zip(models[0].weights, models[1].weights, strict=True):
        assert_allclose(weight, other, atol=1e-4, err_msg=weight.path)


def test_freezing():
    """Layers that were frozen before stay so."""
    inside = network()
    inside.get_layer("stem2_conv").trainable = False
    num_trainable = len(inside.trainable_weights)
    model = lambdanet.as_tf_keras(inside)
    outer = compiled(tf_keras.Sequential([model, tf_keras.layers.Dense(4)]))
    outer(IMAGES)
    outer.layers[0].trainable = False
    assert model.trainable_weights == [] and len(outer.trainable_weights) == 2
    compiled(outer)
    before = model.get_weights()
    outer.fit(IMAGES, LABELS, epochs=1, verbose=0)
    assert_equal_arrays(model.get_weights(), before)
    outer.trainable = True
    assert len(model.trainable_weights) == num_trainable > 10
    assert num_trainable < len(network().trainable_weights)


def test_losses_of_layers_are_losses_of_the_model():
    inputs = keras.Input([4])
    outputs = keras.layers.Dense(2, activity_regularizer=keras.regularizers.L2(0.1))(
        inputs
    )
    model = lambdanet.as_tf_keras(keras.Model(inputs, outputs))
    images = IMAGES[:3, 0, :4, 0]
    (found,) = [model(images), model.losses][1]
    assert float(found) == pytest.approx(
        0.1 * float(tf.reduce_sum(model(images) ** 2)) / 3, rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["saved_model", "model.keras"])
def test_save_and_load(form, tmp_path):
    model = compiled(
        lambdanet.as_tf_keras(network(kernel_regularizer=keras.regularizers.L2(1e-3)))
    )
    model.fit(IMAGES, LABELS, epochs=1, verbose=0)
    model.save(tmp_path / form)
    loaded = tf_keras.models.load_model(tmp_path / form)
    assert_allclose(
        loaded.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), atol=1e-5
    )
    if form == "model.keras":
        assert_equal_arrays(loaded.get_weights(), model.get_weights())
        assert isinstance(loaded, TfKerasModel)
        assert len(loaded.losses) == len(model.losses)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            tf_keras.Sequential([tf_keras.layers.Dense(2)]),
            "the model is a tf_keras Sequential; lambdanet",
        ),
        (keras.Sequential([keras.layers.Dense(2)]), "must be a built Keras 3 model"),
        (
            lambda: "text",
            "must be a built Keras 3 model, or a function that returns one, got 'text'",
        ),
    ],
)
def test_other_models_are_refused(model, message):
    with refused(message):
        lambdanet.as_tf_keras(model)


@pytest.mark.weekly
@pytest.mark.slow
def test_two_devices():
    """Each device has moving averages and random numbers of its own, also after a checkpoint was read."""
    found = result_of("as_tf_keras_on_two_devices.py")
    assert found["refused"].startswith(
        "within a strategy, as_tf_keras needs a function that builds the model"
    )
    assert found["synchronization"] == ["ON_READ MEAN"]
    assert found["seeds"] == [[0, 1], [0, 1]]
