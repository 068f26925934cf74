# SPDX-License-Identifier: Apache-2.0
"""Causal lambda layers: a query sees the positions up to its own along one axis, and nothing after it."""

import numpy as np
import pytest
import tensorflow as tf
from naive_layers import images
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer


@pytest.mark.parametrize(
    ("size", "causal"), [((9,), True), ((3, 4), 2), ((2, 3, 2), "time")]
)
def test_unknown_sizes_and_a_stretched_table(size, causal):
    table = lambdanet.RelativePositionEmbedding(
        scope=None, map_size=3, resize="interpolate"
    )
    layer = LambdaLayer(4, position=table, causal=causal)
    x = images(1, *size, 6)
    call = tf.function(
        layer, input_signature=[tf.TensorSpec([None, *[None] * len(size), 6])]
    )
    n = np.prod(size)
    np.testing.assert_allclose(
        call(x), layer(x, attention_mask=np.ones([n, n])), atol=1e-5
    )


def test_a_shared_embedding_is_causal_for_all_its_layers():
    table = lambdanet.RelativePositionEmbedding(scope=5)
    for _ in range(2):
        LambdaLayer(8, position=table, causal=True)(images(2, 9, 8))
    assert tuple(table.table.shape) == (3, 16)
    with refused("causal along the same axis, got .*=None"):
        LambdaLayer(8, position=table)(images(2, 9, 8))


@pytest.mark.parametrize(
    ("causal", "shape", "message"),
    [
        (True, (2, 4, 4, 8), "'time' or a number from 1 to 2 with 2 spatial axes"),
        (3, (2, 4, 4, 8), "^causal must be at most 2, the last spatial axis, got 3$"),
    ],
)
def test_other_axes_are_refused(causal, shape, message):
    with refused(message):
        LambdaLayer(8, causal=causal)(images(*shape))


def test_a_pool_along_the_causal_axis_and_a_context_are_refused():
    with refused("pool_size must be 1 along the causal axis"):
        LambdaLayer(8, causal=True, strides=2, pool_size=3)(images(2, 9, 8))
    with refused("causal=True needs the inputs as context"):
        layer = LambdaLayer(8, causal=True)
        layer(images(2, 9, 8), context=images(2, 9, 8))
