# SPDX-License-Identifier: Apache-2.0
"""Steps against Keras's own and those of other ways to compute them; files of Keras with their optimizers.

Other ways are parts of a batch against a whole one, and blocks that are computed again against plain ones.
"""

import functools
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_arrays, images, randomize_normalizations, reloaded
from keras import layers
from refusals import refused
from training_runs import CONSTANT, ON_TENSORFLOW

from lambdanet.training.run import build, lora
from lambdanet.training.run.step import build_train_step, rematerialize

pytestmark = pytest.mark.jax


def _network():
    x = keras.Input([None, None, 3])
    y = layers.Dense(5, "gelu", name="c2_block1_conv", kernel_regularizer="l2")(
        layers.GlobalAveragePooling2D()(x)
    )
    return keras.Model(x, layers.Dense(10, name="logits")(y))


def _train(recipe, model, batches):
    """Returns the weights and metrics after a training step per batch."""
    build.compile_model(recipe, model, build.build_optimizer(recipe, model.weights, 10))
    logs = [
        model.train_on_batch(batch, np.arange(len(batch)), return_dict=True)
        for batch in batches
    ]
    assert int(model.optimizer.iterations) == len(batches)
    return [*model.get_weights(), *(np.array(list(log.values())) for log in logs)]


def _trained(sizes=(4,), make=lambda _: _network(), **changes):
    """Trains a new model of a recipe on a batch of images of each size."""
    keras.utils.set_random_seed(0)
    recipe = replace(CONSTANT, **changes)
    batches = [np.array(images(8, size, size, 3)) for size in sizes]
    return _train(recipe, make(recipe), batches)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (keras.optimizers.SGD, {"momentum": 0.9}),
        (keras.optimizers.AdamW, {"weight_decay": 0.5}),
        (keras.optimizers.Lion, {"weight_decay": 0.5}),
    ],
)
def test_step_equals_that_of_keras(kind, options):
    """To the bit: the decay is a power of two, as Keras multiplies it in another order."""
    recipe = replace(CONSTANT, optimizer=kind.__name__.lower(), **options)
    states = []
    for is_ours in (True, False):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input([12]),
                layers.Dense(8),
                layers.BatchNormalization(),
                layers.Dropout(0.5),
                layers.Dense(10),
            ]
        )
        optimizer = build.build_optimizer(recipe, model.weights, 10)
        if not is_ours:
            optimizer = kind(build.build_schedule(recipe, 10), **options)
            optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        build.compile_model(recipe, model, optimizer)
        if not is_ours:
            model.train_step = functools.partial(type(model).train_step, model)
        batch = np.array(images(8, 12))
        for _ in range(2):
            logs = model.train_on_batch(batch, np.arange(8), return_dict=True)
        variables = [*model.variables, *optimizer.variables, *logs.values()]
        states.append(map(np.array, variables))
    assert_equal_arrays(*states)


_clipped_step = functools.partial(_trained, clip_adaptive=0.1, clip_norm=0.2)


@ON_TENSORFLOW
def test_two_devices_with_one_batch_take_its_step(monkeypatch):
    """The sum, of which one part is computed, is clipped; each has half of the loss."""
    expected = _clipped_step()
    strategy = type(tf.distribute.get_strategy())
    monkeypatch.setattr(strategy, "num_replicas_in_sync", 2)
    context = tf.distribute.ReplicaContext
    monkeypatch.setattr(context, "all_reduce", lambda _, op, xs: [2 * x for x in xs])
    assert_equal_arrays(_clipped_step(), expected)


def test_float16_takes_steps_of_float32():
    """To the bit, in layers of float32, as the scale is a power of two."""
    assert_equal_arrays(_clipped_step(mixed_precision="float16"), _clipped_step())


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd"},
        {"optimizer": "muon"},
        {"optimizer": "lamb"},
        {"mixed_precision": "float16"},
    ],
)
def test_file_of_keras_has_an_optimizer_of_keras(tmp_path, changes):
    """Of its class, with the options and variables, where a user's callback saves it (`ModelCheckpoint`)."""
    recipe = replace(CONSTANT, weight_decay=0.1, layer_decay=0.5, **changes)
    model = _network()
    build.compile_model(recipe, model, build.build_optimizer(recipe, model.weights, 10))
    for variable in model.optimizer.variables:
        variable.assign(keras.ops.ones(variable.shape))
    loaded = reloaded(model, tmp_path)
    assert_equal_arrays(
        map(np.array, [*loaded.weights, *loaded.optimizer.variables]),
        map(np.array, [*model.weights, *model.optimizer.variables]),
    )
    saved = keras.saving.serialize_keras_object(model.optimizer)
    assert saved == keras.saving.serialize_keras_object(loaded.optimizer)


@pytest.mark.parametrize(
    ("optimizer", "precision"), [("sgd", "float16"), ("adamw", False)]
)
def test_accumulated_gradients_equal_large_batch(optimizer, precision):
    """Also where the size of the images changes, as with `sizes`, and with loss scaling."""
    states = [
        _trained(
            (4, 4, 6),
            accumulate_steps=parts,
            optimizer=optimizer,
            learning_rate=1e-2,
            mixed_precision=precision,
        )
        for parts in (1, 4)
    ]
    assert_equal_arrays(*states, rtol=1e-5, atol=1e-6)


def test_float16_skips_steps_that_are_not_finite():
    model = _network()
    before = model.get_weights()
    recipe = replace(CONSTANT, mixed_precision="float16")
    _train(recipe, model, [np.full([8, 4, 4, 3], np.inf)])
    assert_equal_arrays(model.get_weights(), before)
    assert int(model.optimizer.inner_optimizer.iterations) == 0


def test_parts_of_batch_have_different_dropout():
    """The seed is drawn from for each part, and so are other masks: no sum of gradients is as with one."""
    last = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input([64]), layers.Dropout(0.5), last])
    recipe = replace(CONSTANT, learning_rate=1.0, momentum=0.0)
    model.compile(build.build_optimizer(recipe, model.weights, 10), "mse")
    model.train_step = build_train_step(model, 3)
    model.train_on_batch(np.ones([3, 64], np.float32), np.ones([3, 1], np.float32))
    # The gradient of a weight is -2 times its mask, 0 or 2, in the mean of three parts.
    kept = np.array(last.kernel)[:, 0] * 3 / 4
    np.testing.assert_allclose(kept, kept.round(), atol=1e-5)
    assert set(kept.round()) == {0, 1, 2, 3}


@pytest.mark.slow
def test_rematerialized_blocks_train_as_plain_ones(two_blocks):
    """Weights, moving statistics and metrics after two steps with dropout and stochastic depth."""

    def make(recipe):
        return randomize_normalizations(build.build_model(recipe))

    states = [
        _trained(
            (16, 16),
            make,
            stochastic_depth_rate=0.5,
            dropout_rate=0.3,
            input_size=16,
            learning_rate=0.1,
            remat=remat,
        )
        for remat in (False, True)
    ]
    assert_equal_arrays(*states, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_frozen_weights_stay_in_rematerialized_blocks(two_blocks):
    """In bfloat16, to which they are cast where they are read; TensorFlow's gradients cannot."""
    options = {"remat": True, "mixed_precision": "bfloat16", "input_size": 16}
    recipe = replace(CONSTANT, **options, start_from="x", lora_rank=2)
    model = build.build_model(recipe)
    lora.enable_lora(model, 2)
    frozen = [v for v in model.weights if not v.trainable and "moving" not in v.path]
    before = [np.array(v) for v in frozen]
    step = functools.partial(_train, recipe, model, [np.array(images(4, 16, 16, 3))])
    if keras.config.backend() == "tensorflow":
        with refused("remat must be false on TensorFlow with frozen weights"):
            step()
        return
    step()
    assert len(frozen) > 4
    assert_equal_arrays(map(np.array, frozen), before)


def test_rematerialized_blocks_are_computed_twice():
    """Their activation is in the computation of the gradients twice, and not so in a plain one."""
    model = _network()
    values = [v.value for v in model.weights]
    counts = []
    for call in (functools.partial(type(model).call, model), rematerialize(model)):

        def loss(values, x, call=call):
            pairs = zip(model.weights, values, strict=True)
            with keras.StatelessScope(list(pairs)):
                return keras.ops.sum(call(x, training=True))

        counts.append(_count(loss, values, np.ones([2, 4, 4, 3], np.float32)))
    assert counts[0] > 0 and counts[1] > counts[0]


def _count(loss, weights, x):
    """Returns the number of error functions, as in "gelu", in the gradients of a loss."""
    if keras.backend.backend() == "jax":
        import jax

        return str(jax.make_jaxpr(jax.grad(loss))(weights, x)).count(" erf")

    @tf.function(autograph=False)
    def gradients(weights, x):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(weights, x)
        return tape.gradient(value, weights)

    operations = gradients.get_concrete_function(weights, x).graph.get_operations()
    return sum(op.type in ("Erfc", "Erf") for op in operations)


def test_blocks_that_do_not_follow_each_other_are_rejected():
    x = keras.Input([4])
    first = layers.Dense(4, name="c2_block1_conv")(x)
    second = layers.Dense(4, name="c2_block2_conv")(first)
    model = keras.Model(x, layers.Add(name="logits")([first, second]), name="skip")
    with refused("remat must be false for skip, whose blocks do not follow each other"):
        rematerialize(model)
