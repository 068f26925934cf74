# SPDX-License-Identifier: Apache-2.0
"""Streaming models equal the whole model, also exported; networks for sequences have the published sizes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from helpers import assert_close, assert_near, reloaded
from keras import Input, Model, layers
from naive_layers import images, randomize
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer, streaming_model


def network():
    """A causal network with an average, of every kind of layer that can stream; strides of 4."""
    inputs = Input([None, 6])
    x = layers.Conv1D(8, 3, dilation_rate=2, padding="causal")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.ZeroPadding1D((1, 0))(x)
    x = layers.MaxPooling1D(3, 2)(x)
    y = LambdaLayer(8, scope=5, causal=True)(x)
    y = layers.Dropout(0.1)(y)
    x = layers.Concatenate()([x, y])
    x = layers.LayerNormalization()(x)
    x = layers.Conv1D(12, 3, strides=2, padding="causal")(x)
    x = LambdaLayer(12, scope=9, causal=True, multi_head=True)(x)
    x = layers.ZeroPadding1D((2, 0))(x)
    x = layers.AveragePooling1D(3, 1)(x)
    x = layers.GlobalAveragePooling1D()(x)
    model = Model(inputs, layers.Dense(5)(x))
    randomize(model)
    return model


X = images(2, 32, 6)


def steps_of(stream, x, chunk_size):
    state = stream.initial_state(len(x))
    outputs = []
    for start in range(0, x.shape[1], chunk_size):
        y, state = stream.step(x[:, start : start + chunk_size], state)
        outputs.append(y)
    return outputs


@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.slow
def test_averages_of_chunks_are_those_so_far(chunk_size, tmp_path):
    """Of networks without an average see fuzz_streams_test."""
    length = chunk_size or 4
    model = network()
    stream = streaming_model(model, chunk_size)
    loaded = reloaded(stream, tmp_path)
    for number, (y, same) in enumerate(
        zip(steps_of(stream, X, length), steps_of(loaded, X, length), strict=True), 1
    ):
        assert_near(y, model(X[:, : number * length]), 1e-5)
        np.testing.assert_array_equal(same, y)


@pytest.mark.slow
def test_exported_streams_equal_the_model(tmp_path):
    """SavedModel and LiteRT, with the state in and out."""
    model = network()
    stream = streaming_model(model)
    stream.export(tmp_path / "stream", verbose=False)
    saved = tf.saved_model.load(tmp_path / "stream")
    stream.export(tmp_path / "stream.tflite", format="litert", verbose=False)
    interpreter = Interpreter(str(tmp_path / "stream.tflite"))
    runner = interpreter.get_signature_runner()
    expected = model(X[:1])
    for run in (saved.serve, lambda inputs: runner(**inputs)):
        state = stream.initial_state(1)
        for start in range(0, 32, 4):
            results = dict(run({"inputs": X[:1, start : start + 4], **state}))
            y = results.pop("outputs")
            state = results
        assert_near(y, expected, 1e-5)


def test_a_video_streams_frame_by_frame():
    inputs = Input([None, 4, 3, 6])
    layer = LambdaLayer(8, scope=(3, 5, 5), causal="time")
    model = Model(inputs, layers.ReLU()(layer(inputs)))
    randomize(model)
    x = images(2, 5, 4, 3, 6)
    outputs = np.concatenate(steps_of(streaming_model(model), x, 1), axis=1)
    assert_close(outputs, model(x), 1e-4)


INPUTS = Input([None, 6])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([layers.Conv1D(8, 3, name="c")], r"layer 'c' \(Conv1D\) cannot stream"),
        (
            [layers.Conv1D(8, 3, padding="same")],
            r"ZeroPadding1D\(\(2, 0\)\) before it",
        ),
        ([layers.AveragePooling1D(3, 1)], "sees later positions"),
        ([layers.ZeroPadding1D(1)], r"at the end: pad by \(n, 0\)"),
        (
            [layers.MaxPooling1D(2, data_format="channels_first")],
            'it needs data_format="channels_last"',
        ),
        (
            [layers.ZeroPadding1D((1, 0)), layers.ReLU()],
            "after ZeroPadding1D, only a window can",
        ),
        ([layers.ZeroPadding1D((1, 0))], "no window after it"),
        (
            [layers.Bidirectional(layers.GRU(3))],
            "other positions: compute it after",
        ),
        (
            [layers.LayerNormalization(axis=1)],
            "other positions: compute it after",
        ),
        ([layers.Softmax(axis=1)], "other positions: compute it after"),
        ([layers.GlobalAveragePooling1D(keepdims=True)], "needs keepdims=False"),
        (
            [LambdaLayer(8)],
            "not causal along the first axis: use causal='time'",
        ),
        ([LambdaLayer(8, causal=True, scope=None)], "scope must be a number"),
    ],
)
def test_models_that_cannot_stream(parts, message):
    x = Input([12, 6])
    model = keras.Sequential([x, *parts])
    with refused(message):
        streaming_model(model)


def squeezed(x):
    gate = layers.GlobalAveragePooling1D()(x)
    return layers.Multiply()([x, layers.Dense(6)(gate)])


def pooled(x):
    return layers.Multiply()([x, layers.MaxPooling1D(4)(x)])


def embedded(x):
    x = layers.Embedding(9, 6, mask_zero=True)(x[..., 0])
    return LambdaLayer(6, 2, causal=True)(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: LambdaLayer(6, 2, causal=True)(x, attention_mask=np.tri(4)),
            "it has a mask or a context",
        ),
        (
            lambda x: LambdaLayer(6, 2, causal=True)(x, padding_mask=np.ones([1, 4])),
            "it has a mask or a context",
        ),
        # Chunks of other lengths would have other means.
        (squeezed, "may see other positions"),
        (pooled, r"\(Multiply\) cannot stream: it may see other positions"),
        (embedded, r"\(Embedding\) cannot stream: mask_zero=True"),
    ],
)
def test_graphs_that_cannot_stream(function, message):
    x = Input([4, 6])
    with refused(message):
        streaming_model(Model(x, function(x)))


def test_size_of_frames_must_be_known():
    x = Input([None, None, None, 4])
    layer = LambdaLayer(4, scope=3, causal="time")
    with refused(r"size must be 3 numbers, .* got \(None, None, None\)"):
        streaming_model(Model(x, layer(x)))
    with refused(r"size must be 3 numbers, .* got \(3,\)"):
        layer.initial_state(1, [3])


def test_other_chunks_and_models_of_code_are_refused():
    model = network()
    with refused("^chunk_size must be a multiple of 4, .*got 6"):
        streaming_model(model, 6)
    layer = LambdaLayer(6, num_heads=2, causal=True)
    shared = Model(INPUTS, layer(layer(INPUTS)))
    with refused("cannot stream: it is called twice"):
        streaming_model(shared)
    with refused("batch_size must be a positive integer, got 0"):
        streaming_model(model).initial_state(0)


@pytest.mark.parametrize(
    ("name", "trunk", "whole"),
    [
        # Tura et al. 2021, in thousands: 89 and 270.
        ("lambda_resnet18_1d", 85_288, 87_423),
        ("lambda_resnet18_1d_2x", 262_864, 267_099),
    ],
)
def test_sequence_networks_have_the_published_sizes(name, trunk, whole):
    def count(name, num_classes):
        model = lambdanet.create_sequence_model(name, num_classes)
        return sum(np.prod(weight.shape) for weight in model.trainable_weights)

    for variant in (name, f"{name}_causal"):
        assert count(variant, 0) == trunk
        assert count(variant, 35) == whole


def test_weights_in_the_package_stream():
    model = lambdanet.create_sequence_model(
        "lambda_resnet18_1d_causal", 10, in_channels=1, weights="mnist1d"
    )
    x = images(2, 48, 1)
    *_, outputs = steps_of(streaming_model(model), x, 16)
    assert_close(outputs, model(x), 1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lambda_resnet_1d"}, "did you mean lambda_resnet18_1d"),
        ({"weights": "mnist"}, "unknown weights of .* 'mnist'; did you mean mnist1d"),
        ({"weights": "mnist1d"}, "does not fit"),
        (
            {"name": "lambda_resnet18_1d", "weights": "mnist1d"},
            "unknown weights of lambda_resnet18_1d 'mnist1d'",
        ),
    ],
)
def test_sequence_networks_that_are_refused(arguments, message):
    arguments = {"name": "lambda_resnet18_1d_causal", **arguments}
    with refused(message):
        lambdanet.create_sequence_model(**arguments)
