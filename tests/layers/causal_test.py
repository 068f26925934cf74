# SPDX-License-Identifier: Apache-2.0
"""Causal lambda layers: a query sees the positions up to its own along one axis, and nothing after it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from naive_layers import images

import lambdanet
from lambdanet.errors import InputError

# Arguments of a layer, the shape of its input, and the causal axis of that.
CASES = {
    "sequence": ({"causal": True}, (2, 9, 6), 1),
    "strides": ({"causal": True, "strides": 2}, (2, 9, 6), 1),
    "whole sequence": ({"causal": True, "scope": None}, (2, 9, 6), 1),
    "unstructured": ({"causal": True, "position": "unstructured"}, (2, 9, 6), 1),
    "l2": ({"causal": True, "key_normalization": "l2"}, (2, 9, 6), 1),
    "unnormalized": ({"causal": True, "key_normalization": None}, (2, 9, 6), 1),
    "spectrogram": ({"causal": 2, "scope": (None, 5)}, (2, 4, 5, 6), 2),
    "pool": (
        {"causal": "time", "strides": 2, "pool_size": (1, 3)},
        (2, 5, 6, 6),
        1,
    ),
    "video": (
        {"causal": "time", "scope": (3, 5, None), "strides": (1, 2, 1)},
        (2, 4, 3, 3, 6),
        1,
    ),
    "unstructured video": (
        {"causal": 3, "position": "unstructured", "strides": 2, "multi_head": True},
        (2, 2, 3, 4, 6),
        3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_depend_on_nothing_later(name):
    options, shape, axis = CASES[name]
    layer = lambdanet.LambdaLayer(8, **{"scope": 5, **options})
    x = images(*shape)
    outputs = np.moveaxis(layer(x), axis, 0)
    size = shape[axis]
    strides = -(-size // len(outputs))
    for first_changed in range(1, size):
        changed = np.moveaxis(x.copy(), axis, 0)
        changed[first_changed:] = 10 * images(*changed[first_changed:].shape, seed=1)
        others = np.moveaxis(layer(np.moveaxis(changed, 0, axis)), axis, 0)
        same = -(-first_changed // strides)
        np.testing.assert_allclose(others[:same], outputs[:same], atol=2e-5)
        assert np.abs(others[same:] - outputs[same:]).max(initial=1) > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_saved_and_folded_layers_are_causal(name, tmp_path):
    options, shape, _ = CASES[name]
    inputs = keras.Input(shape[1:])
    layer = lambdanet.LambdaLayer(8, **{"scope": 5, **options})
    model = keras.Model(inputs, layer(inputs))
    x = images(*shape)
    model.save(tmp_path / "causal.keras")
    loaded = keras.models.load_model(tmp_path / "causal.keras")
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)
    folded = lambdanet.for_inference(loaded)
    np.testing.assert_allclose(folded(x), model(x), atol=1e-5)


def test_tables_have_the_offsets_up_to_the_query_alone():
    def table_of(shape, **options):
        layer = lambdanet.LambdaLayer(8, **options)
        layer.build(shape)
        return tuple(layer.position.table.shape)

    assert table_of((2, 9, 6), scope=5, causal=True) == (3, 16)
    assert table_of((2, 9, 6), scope=None, causal=True) == (9, 16)
    video = {"scope": (5, 3, None), "causal": "time"}
    assert table_of((2, 4, 3, 7, 6), **video) == (3, 3, 13, 16)


@pytest.mark.parametrize(
    ("size", "causal"), [((9,), True), ((3, 4), 2), ((2, 3, 2), "time")]
)
def test_unknown_sizes_and_a_stretched_table(size, causal):
    layer = lambdanet.LambdaLayer(
        4, scope=None, map_size=3, resize="interpolate", causal=causal
    )
    x = images(1, *size, 6)
    call = tf.function(
        layer, input_signature=[tf.TensorSpec([None, *[None] * len(size), 6])]
    )
    n = np.prod(size)
    np.testing.assert_allclose(call(x), layer(x, mask=np.ones([n, n])), atol=1e-5)


def test_a_shared_embedding_is_causal_for_all_its_layers(tmp_path):
    table = lambdanet.RelativePositionEmbedding(scope=5)
    inputs = keras.Input([9, 8])
    layers = [lambdanet.LambdaLayer(8, position=table, causal=True) for _ in range(2)]
    model = keras.Model(inputs, layers[1](layers[0](inputs)))
    assert tuple(table.table.shape) == (3, 16)
    model.save(tmp_path / "shared.keras")
    loaded = keras.models.load_model(tmp_path / "shared.keras")
    x = images(2, 9, 8)
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-6)
    with pytest.raises(InputError, match="causal along the same axis, got .*=None"):
        lambdanet.LambdaLayer(8, position=table)(inputs)


@pytest.mark.parametrize(
    ("causal", "shape", "message"),
    [
        (True, (2, 4, 4, 8), "'time' or a number from 1 to 2 with 2 spatial axes"),
        (3, (2, 4, 4, 8), "^causal must be at most 2, the last spatial axis, got 3$"),
        (0, (2, 9, 8), "got 0; 1 is the first spatial axis$"),
        (-1, (2, 9, 8), "got -1; 1 is the first"),
        (1.5, (2, 9, 8), r"got 1\.5; 1 is the first"),
        (None, (2, 9, 8), "got None; 1 is the first"),
        ("tome", (2, 9, 8), "unknown causal 'tome'; did you mean time"),
    ],
)
def test_other_axes_are_refused(causal, shape, message):
    with pytest.raises(InputError, match=message):
        lambdanet.LambdaLayer(8, causal=causal)(images(*shape))


def test_a_pool_along_the_causal_axis_and_a_context_are_refused():
    with pytest.raises(InputError, match="pool_size must be 1 along the causal axis"):
        lambdanet.LambdaLayer(8, causal=True, strides=2, pool_size=3)(images(2, 9, 8))
    with pytest.raises(InputError, match="causal=True needs the inputs as context"):
        layer = lambdanet.LambdaLayer(8, causal=True)
        layer(images(2, 9, 8), context=images(2, 9, 8))
