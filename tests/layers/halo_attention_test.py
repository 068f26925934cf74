# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks: any size, its form for a TPU, and its graph; fuzz_layers_test has the loop."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, with_gradients
from naive_layers import images, naive_attention, offsets_of, projected

import lambdanet
from lambdanet import HaloAttention
from lambdanet.backend import device


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_local_attention_equals_the_loop_for_any_block(block_size, kind):
    layer = lambdanet.LocalAttention(8, num_heads=2, scope=3, block_size=block_size)
    x = images(2, 5, 6, 3)
    with device.assume(kind):
        outputs = layer(x)
    expected = naive_attention(
        *projected(layer, x),
        offsets_of(layer, np.concatenate),
        lambda n, m: max(abs(m[0] - n[0]), abs(m[1] - n[1])) <= 1,
    )
    assert_close(outputs, expected, 1e-5)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (
            partial(HaloAttention, 8, 2, 4, 1, strides=2, positions="added"),
            "CPU",
        ),
        (
            partial(HaloAttention, 8, 2, 4, 1, strides=2, compact_offsets=True),
            "TPU",
        ),
    ],
)
def test_one_function_serves_every_size(layer, kind):
    """Sizes known at tracing, where one block can do without its halo, and unknown ones agree."""
    layer = layer()
    with device.assume(kind):
        traced = tf.function(
            layer, input_signature=[tf.TensorSpec([None, None, None, 6])]
        )
        traced.get_concrete_function()
    for shape in ([2, 3, 4, 6], [1, 9, 5, 6], [2, 9, 17, 6]):
        x = tf.constant(images(*shape), tf.float32)
        outputs = layer(x)
        assert outputs.shape == layer.compute_output_shape(x.shape)
        assert_close(traced(x), outputs, 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "layer",
    [
        partial(HaloAttention, 64, 4),
        partial(HaloAttention, 128, 8, mask_padding=False),
        partial(lambdanet.LocalAttention, 32, 4, scope=5),
        partial(HaloAttention, 64, 4, strides=2),
        partial(HaloAttention, 256, 8, 4, halo_size=1, mask_padding=False),
        partial(HaloAttention, 128, 2, 12),  # a head per tile
        partial(HaloAttention, 160, 2),  # heads too deep
    ],
)
def test_tpu_form_equals_single_heads_with_gradients(layer, dtype):
    layer = layer(dtype=dtype)
    x = tf.constant(images(2, 12, 20, 16), layer.compute_dtype)

    layer(x)

    def results():
        arrays = with_gradients(
            lambda x, *_: layer(x), [x, *layer.trainable_weights], tf.square
        )
        return [tf.cast(array, "float64") for array in arrays]

    expected = results()
    with device.assume("TPU"):
        for result, of_a_head in zip(results(), expected, strict=True):
            error = np.max(np.abs(result - of_a_head)) / np.max(np.abs(of_a_head))
            assert error < {"float64": 1e-13, "mixed_bfloat16": 4e-2}[dtype]


def test_static_sizes_stay_static():
    layer = HaloAttention(8, num_heads=2, block_size=4, halo_size=3)
    graph = (
        tf.function(layer).get_concrete_function(tf.TensorSpec([2, 10, 13, 6])).graph
    )
    assert all(
        output.shape.is_fully_defined()
        for op in graph.get_operations()
        for output in op.outputs
    )
