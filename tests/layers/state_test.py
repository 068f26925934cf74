# SPDX-License-Identifier: Apache-2.0
"""Causal lambda layers with a state: steps and chunks equal the layer on the whole sequence."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_cases import CASES, SEQUENCE, case_of
from helpers import assert_close, assert_near, reloaded
from naive_layers import images, randomize
from refusals import refused

from lambdanet import LambdaLayer


@pytest.mark.parametrize("name", CASES)
def test_chunks_and_steps_equal_the_whole(name):
    layer, x, axis = case_of(name)
    expected = layer(x)
    for cut in (2, 4):
        first, second = np.split(x, [cut], axis)
        outputs, state = layer(first, return_state=True)
        others = layer(second, initial_state=state)
        together = np.concatenate([outputs, others], axis)
        assert_close(together, expected, 1e-4)
    if name == "strides":  # more than a position makes an output
        return
    state = layer.initial_state(2)
    outputs = []
    for position in range(x.shape[axis]):
        output, state = layer.step(np.take(x, position, axis), state)
        outputs.append(output)
    assert_close(np.stack(outputs, axis), expected, 1e-4)
    # Of constant size.
    first = layer.initial_state(2)
    shapes = keras.tree.map_structure(np.shape, (state, first))
    assert shapes[0] == shapes[1]


def test_chunks_with_padding_and_gradients():
    layer, x, _ = case_of("both")
    visible = np.arange(8) < np.array([[3], [7]])
    x[~visible] = np.nan
    x = tf.constant(x)

    def in_chunks():
        state = layer.initial_state(2)
        outputs = []
        for start in (0, 4):
            part = slice(start, start + 4)
            y, state = layer(
                x[:, part],
                padding_mask=visible[:, part],
                initial_state=state,
                return_state=True,
            )
            outputs.append(y)
        return tf.concat(outputs, axis=1)

    def gradients_of(compute):
        with tf.GradientTape() as tape:
            outputs = tf.boolean_mask(compute(), visible)
            loss = tf.reduce_sum(outputs**2)
        return [outputs, *tape.gradient(loss, layer.trainable_weights)]

    whole = gradients_of(lambda: layer(x, padding_mask=visible))
    for one, other in zip(gradients_of(in_chunks), whole, strict=True):
        assert_near(one, other, 1e-5)


def test_states_in_a_model_and_of_half_precision(tmp_path):
    """In a functional model that is saved; the sums of content stay in float32."""
    policy = keras.mixed_precision.Policy("mixed_bfloat16")
    layer = LambdaLayer(8, scope=5, causal=True, dtype=policy)
    layer.build(SEQUENCE)
    spec = layer.initial_state(2)
    assert spec[0]["total"].dtype == tf.float32
    assert spec[0]["values"].dtype == tf.bfloat16
    inputs = keras.Input([None, 6])
    state = {
        name: keras.Input(x.shape[1:], dtype=x.dtype.name, name=name)
        for name, x in spec[0].items()
    }
    outputs = layer(inputs, initial_state=[state], return_state=True)
    model = keras.Model([inputs, state], outputs)
    loaded = reloaded(model, tmp_path)
    x = tf.constant(images(*SEQUENCE))
    y, (new,) = model([x, spec[0]])
    others, (loaded_state,) = loaded([x, spec[0]])
    assert new["total"].dtype == tf.float32
    for name, value in new.items():
        np.testing.assert_array_equal(loaded_state[name], value)
    np.testing.assert_array_equal(tf.cast(others, tf.float32), tf.cast(y, tf.float32))


@pytest.mark.parametrize(
    ("normalization", "length"),
    [
        pytest.param("softmax", 20_000, marks=pytest.mark.slow),
        ("l2", 2_000),
        (None, 2_000),
        *(
            pytest.param(normalization, 100_000, marks=pytest.mark.weekly)
            for normalization in ("softmax", "l2", None)
        ),
    ],
)
def test_float32_does_not_drift(normalization, length):
    """Neither step by step in a compiled loop, which must keep what sums lose, nor in chunks, nor at once."""
    x = images(length, 6)
    x[:, :2] += 1  # of another mean than zero, which sums have to keep
    layer = LambdaLayer(
        8,
        scope=5,
        causal=True,
        key_normalization=normalization,
        batch_norm=False,
    )
    config = {**layer.get_config(), "dtype": "float64"}
    exact = LambdaLayer.from_config(config)
    for each in (layer, exact):
        each.build([1, None, 6])
        randomize(each)

    @tf.function(jit_compile=True)
    def steps(x):
        def step(previous, frame):
            return layer.step(frame[tf.newaxis], previous[1])

        return tf.scan(step, x, (tf.zeros([1, 8]), layer.initial_state(1)))[0][:, 0]

    state = layer.initial_state(1)
    chunks = []
    for chunk in np.split(x, 4):
        outputs, state = layer(chunk[None], initial_state=state, return_state=True)
        chunks.append(outputs[0])
    expected = exact(x[None])[0].numpy()
    for outputs in (steps(x), np.concatenate(chunks), layer(x[None])[0]):
        # Some roundings of float32, of 6e-8 each; sums without their rests are 5e-6 off.
        assert_near(outputs, expected, 1e-6)


CHUNK = images(*SEQUENCE)


def state_of(batch_size=2, **options):
    layer = LambdaLayer(8, scope=5, causal=True, **options)
    layer.build(SEQUENCE)
    return layer.initial_state(batch_size)


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        (
            {},
            {"initial_state": state_of(3)},
            r"initial_state .*\(2, 16, 1\).*got .*\(3, 16",
        ),
        ({}, {"initial_state": state_of(position=None)}, "initial_state must be of"),
        (
            {},
            {"return_state": True, "attention_mask": np.tri(8)},
            r"^attention_mask must be None with a state.* got \(8, 8\)$",
        ),
        ({"scope": None}, {"return_state": True}, "^scope must be a number along"),
        (
            {"position": "unstructured"},
            {"return_state": True},
            "relative ones or None.*got 'UnstructuredPositionEmbedding'",
        ),
        ({"causal": False}, {"return_state": True}, "^causal must be .*, got False$"),
        (
            {"implementation": "reference"},
            {"initial_state": state_of()},
            "^implementation must be .* for a state, got 'reference'$",
        ),
        (
            {"strides": 3},
            {"initial_state": state_of()},
            "the length of the inputs must be divisible by 3, .*got 8$",
        ),
    ],
)
def test_states_that_are_refused(options, call, message):
    layer = LambdaLayer(8, **{"scope": 5, "causal": True, **options})
    layer.build(SEQUENCE)
    with refused(message):
        layer(CHUNK, **call)


def test_a_layer_that_is_not_built_has_no_state():
    layer = LambdaLayer(8, causal=True)
    with refused("has no state before it is built: call it"):
        layer.initial_state(2)
    with refused("has no state before it is built: call it"):
        layer(CHUNK, initial_state=state_of())
