# SPDX-License-Identifier: Apache-2.0
"""Accumulated gradients against a large batch, and rematerialized blocks against plain ones."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from helpers import images, randomize_normalizations
from programs.small_model import TWO_BLOCKS

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.models import zoo
from lambdanet.training.run import build
from lambdanet.training.run.rematerialization import rematerialize
from lambdanet.training.run.stateless_dropout import make_dropout_stateless
from lambdanet.training.run.train_step import create_train_step

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"), schedule="constant", warmup_epochs=0, weight_decay=0.0, global_batch_size=8
)


def _network(dropout=0.0):
    x = keras.Input([None, None, 3])
    y = keras.layers.Dense(5, "gelu", name="c2_block1_conv", kernel_regularizer="l2")(
        keras.layers.GlobalAveragePooling2D()(x)
    )
    return keras.Model(x, keras.layers.Dense(10, name="logits")(keras.layers.Dropout(dropout)(y)))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_accumulated_gradients_equal_large_batch(optimizer):
    """Also where the size of the images changes, as with `sizes`."""
    batches = [images(8, size, size, 3) for size in (4, 4, 6)]
    labels = tf.constant([1, 0, 3, 2, 9, 5, 5, 4], tf.int64)
    states = []
    for parts in (1, 4):
        recipe = dataclasses.replace(RECIPE, accumulate_steps=parts, optimizer=optimizer, learning_rate=1e-2)
        keras.utils.set_random_seed(0)
        model = _network()
        build.compile_model(recipe, model, build.build_optimizer(recipe, 10))
        logs = [model.train_on_batch(batch, labels, return_dict=True) for batch in batches]
        assert int(model.optimizer.iterations) == 3
        states.append([*model.get_weights(), *(np.array(list(log.values())) for log in logs)])
    for whole, accumulated in zip(*states, strict=True):
        np.testing.assert_allclose(accumulated, whole, rtol=1e-5, atol=1e-6)


def test_parts_of_batch_have_different_dropout():
    model, masks = _network(0.5), []
    model.compile(keras.optimizers.SGD(0.0), "mse")
    make_dropout_stateless(model, model.optimizer.iterations, seed=0)
    layer = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dropout))
    draw = layer._random_generator.dropout

    def recorded(x, *args, **kwargs):
        masks.append(draw(tf.ones_like(x), *args, **kwargs).numpy().tobytes())
        return draw(x, *args, **kwargs)

    layer._random_generator.dropout = recorded
    create_train_step(model, 3)((images(6, 4, 4, 3), tf.zeros([6, 10])))
    assert len(masks) == len(set(masks)) == 3


def test_rematerialized_blocks_train_as_plain_ones(monkeypatch):
    """Weights, moving statistics and metrics after two steps with dropout and stochastic depth."""
    monkeypatch.setitem(zoo.MODELS, "lambda_resnet_tiny", TWO_BLOCKS)
    settings = {"stochastic_depth_rate": 0.5, "dropout_rate": 0.3, "input_size": 16, "learning_rate": 0.1}
    states = []
    for remat in (False, True):
        recipe = dataclasses.replace(RECIPE, **settings, remat=remat)
        keras.utils.set_random_seed(0)
        model = build.build_model(recipe)
        randomize_normalizations(model)
        build.compile_model(recipe, model, build.build_optimizer(recipe, 10))
        make_dropout_stateless(model, model.optimizer.iterations, seed=0)
        batch, labels = images(8, 16, 16, 3), tf.range(8)
        logs = [model.train_on_batch(batch, labels, return_dict=True) for _ in range(2)]
        states.append([*model.get_weights(), *(np.array(list(log.values())) for log in logs)])
    for plain, rematerialized_ in zip(*states, strict=True):
        np.testing.assert_allclose(rematerialized_, plain, rtol=1e-5, atol=1e-6)


def test_rematerialized_blocks_are_computed_twice():
    """Each convolution is in the graph of the gradients twice, and not so in a plain graph."""
    model = _network()
    counts = []
    for forward in (lambda x: model(x, training=True), rematerialize(model)):

        @tf.function(autograph=False)
        def gradients(x, forward=forward):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(forward(x))
            return tape.gradient(loss, model.trainable_variables)

        graph = gradients.get_concrete_function(tf.TensorSpec([2, 4, 4, 3])).graph
        counts.append(sum(op.type == "Erfc" or op.type == "Erf" for op in graph.get_operations()))
    assert counts[0] > 0 and counts[1] > counts[0]


def test_blocks_that_do_not_follow_each_other_are_rejected():
    x = keras.Input([4])
    first = keras.layers.Dense(4, name="c2_block1_conv")(x)
    second = keras.layers.Dense(4, name="c2_block2_conv")(first)
    model = keras.Model(x, keras.layers.Add(name="logits")([first, second]), name="skip")
    with pytest.raises(
        InputError, match="remat must be false for skip, whose blocks do not follow each other"
    ):
        rematerialize(model)
