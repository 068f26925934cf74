# SPDX-License-Identifier: Apache-2.0
"""Implied attention maps: A V is the layer's output, and A is what the paper's equations make of it."""

import causal_cases
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close
from naive_layers import embeddings_of, images, normalized, randomize
from processes import output_of
from refusals import refused

import lambdanet
from lambdanet.explain import implied_attention, position_pictures
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.projections import project

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", causal_cases.CASES)
def test_maps_after_a_state_leave_the_past_outside(name):
    layer, x, axis = causal_cases.case_of(name)
    first, second = np.split(x, [4], axis)
    _, state = layer(first, return_state=True)
    outputs = np.asarray(layer(second, initial_state=state))
    found = implied_attention(layer, second, initial_state=state)
    assert "state" in found.outside
    assert_close(found.outputs(), outputs.reshape([2, -1, 8]), 1e-4)


def test_maps_of_another_context_with_a_mask_for_each_example():
    layer = LambdaLayer(8, scope=5, key_dim=3)
    x, context = (images(2, n, 6, seed=n) for n in (4, 7))
    mask = np.random.default_rng(0).integers(0, 2, [2, 4, 7])
    masks = {"context": context, "attention_mask": mask}
    outputs = layer(x, **masks)
    found = implied_attention(layer, x, [3, 1], **masks)
    assert_close(found.outputs(), np.asarray(outputs)[:, [3, 1]], TOLERANCE)
    hidden = mask[:, np.newaxis, [3, 1]] == 0
    assert not np.where(hidden, found.total, 0).any()


@pytest.mark.parametrize("causal", [False, "time"])
def test_maps_equal_the_equations_of_the_paper(causal):
    layer = LambdaLayer(8, 2, 3, scope=3, strides=(1, 2), causal=causal)
    layer.build([2, 4, 5, 6])
    randomize(layer)
    x = tf.constant(images(2, 4, 5, 6))
    parts = project(layer, x, training=False)
    queries = tf.reshape(parts.queries[0], [2, 12, 2, 3])
    keys = tf.reshape(parts.keys[0], [2, 20, 3, 1])
    content, position, *_ = implied_attention(layer, x)
    visible = np.ones([12, 20], bool)
    if causal:
        for n, row in enumerate(np.repeat(range(4), 3)):
            visible[n, 5 * (row + 1) :] = False
    sizes = (4, 3), (4, 5), (1, 2)
    embeddings = embeddings_of(layer, 0, *sizes, layer.causal_axis)
    expected = np.einsum("bnhk,nmku->bhnm", queries, embeddings)
    assert_close(position, expected, TOLERANCE)
    weights = normalized(keys[:, np.newaxis], visible, layer)
    expected = np.einsum("bnhk,bnmku->bhnm", queries, weights)
    assert_close(content, expected, TOLERANCE)
    assert not np.where(visible, 0, content).any()


def test_weights_of_attention_add_up_to_one():
    x = images(1, 7, 6, 8)
    for layer in (
        lambdanet.GlobalAttention(8, 2),
        lambdanet.AxialAttention(8, 2),
        lambdanet.LinearAttention(8, 2),
        lambdanet.LocalAttention(8, 2, scope=3),
        lambdanet.HaloAttention(8, 2, 4, 1, strides=2),
    ):
        found = implied_attention(layer, x, [(1, 2)])
        assert found.position is None
        weights = np.asarray(found.content)
        assert_close(weights.sum(-1), 1, TOLERANCE)
        assert (weights >= 0).all()
    # Query (1, 2) of the strided halo is at (2, 4), in the block of the rows 0 to 3 and the columns 4 and 5.
    rows, columns = np.nonzero(weights[0, 0, 0].reshape(7, 6))
    assert (set(rows), set(columns)) == ({0, 1, 2, 3, 4}, {3, 4, 5})


def test_queries_are_numbers_or_coordinates():
    layer = LambdaLayer(8, scope=3, strides=(1, 2))
    x = images(1, 4, 5, 8)
    by_number = implied_attention(layer, x, [7, np.int64(2)])
    by_place = implied_attention(layer, x, [(2, 1), np.array([0, 2])])
    np.testing.assert_array_equal(by_number.total, by_place.total)


def test_pictures_of_positions():
    layer = LambdaLayer(8, 2, 3, scope=(5, 3), multi_head=True, intra_depth=2)
    layer.build([1, 6, 6, 8])
    table = np.asarray(layer.position.table)  # [lambdas, r, r, k, u]
    pictures = position_pictures(layer)
    assert pictures.shape == (12, 5, 3)
    np.testing.assert_array_equal(pictures[6 + 2 * 1 + 1], table[1, :, :, 1, 1])


IMAGE = images(1, 4, 4, 8)


@pytest.mark.parametrize(
    ("make", "call", "message"),
    [
        (lambdanet.SqueezeExcite, {}, "layer must be a LambdaLayer or an attention"),
        (lambdanet.SliceLambdaLayer, {}, "SliceLambdaLayer .* has no map"),
        (LambdaLayer, {"queries": [16]}, "outputs from 0 to 15, .* got 16"),
        (LambdaLayer, {"queries": [(0, 4)]}, r"coordinates below \(4, 4\), got \(0, 4"),
        (LambdaLayer, {"queries": []}, "outputs from 0 to 15"),
        (LambdaLayer, {"attention_mask": np.ones([4, 4])}, "mask must be of the shape"),
        (
            lambdanet.GlobalAttention,
            {"attention_mask": np.ones([16, 16])},
            "GlobalAttention has no argument attention_mask",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(make, call, message):
    with refused(message):
        implied_attention(make(), IMAGE, **call)


@pytest.mark.slow
def test_memory_grows_with_the_queries_asked_for():
    """All maps of 64 x 64 positions take 268 MB for each part, and their embeddings 1,074 MB."""
    assert int(output_of("peak_of_maps.py")) < 30e6
