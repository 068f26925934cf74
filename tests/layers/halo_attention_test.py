# SPDX-License-Identifier: Apache-2.0
"""Attention in blocks against loops over pairs of positions, its limits, and its graph."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from naive_attention import halves, images, naive_attention, naive_halo_attention, projected

import lambdanet
from lambdanet.backend import device
from lambdanet.errors import InputError
from lambdanet.ops.tpu import joint_logits, packed_heads


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("mask_padding", [True, False])
@pytest.mark.parametrize(
    ("map_size", "block_size", "halo_size"),
    [((4, 6), 2, 1), ((5, 7), 3, 1), ((5, 4), 2, 3), ((3, 5), 4, 2), ((4, 3), 2, 0), ((3, 2), 4, 0)],
    ids=["divides", "does not divide", "halo beyond neighbors", "block above height", "no halo", "no more"],
)
def test_halo_attention_equals_the_loop(map_size, block_size, halo_size, mask_padding, kind):
    layer = lambdanet.HaloAttention(
        4, 2, block_size, halo_size, value_ratio=2.0, key_dim=6, mask_padding=mask_padding
    )
    x = images(2, *map_size, 3)
    with device.assume(kind):
        outputs = layer(x.astype(np.float32))
    assert outputs.shape == [2, *map_size, 8]
    np.testing.assert_allclose(outputs, naive_halo_attention(layer, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("compact_offsets", [True, False])
@pytest.mark.parametrize("mask_padding", [True, False])
@pytest.mark.parametrize(
    ("map_size", "block_size", "strides"),
    [((4, 8), 4, 2), ((5, 7), 2, 2), ((3, 6), 3, 3), ((3, 4), 6, 2)],
    ids=["divides", "does not divide", "threes", "one block"],
)
def test_strided_queries_equal_the_loop(map_size, block_size, strides, mask_padding, compact_offsets, kind):
    """In the same windows as without strides, also with a size that is unknown at tracing.

    The size of the map does not change how offsets are counted, so only compact offsets are traced.
    """
    layer = lambdanet.HaloAttention(
        4,
        2,
        block_size,
        halo_size=1,
        key_dim=3,
        mask_padding=mask_padding,
        strides=strides,
        positions="added",
        compact_offsets=compact_offsets,
    )
    x = images(2, *map_size, 3)
    with device.assume(kind):
        outputs = layer(x.astype(np.float32))
        if compact_offsets:
            traced = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 3])])
            np.testing.assert_allclose(traced(x.astype(np.float32)), outputs, rtol=1e-5, atol=1e-5)
    assert outputs.shape == layer.compute_output_shape(x.shape)
    np.testing.assert_allclose(outputs, naive_halo_attention(layer, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"block_size": 7, "strides": 2, "compact_offsets": True},
            "strides must divide block_size, got strides=2 and block_size=7",
        ),
        ({"positions": "summed"}, "unknown positions 'summed'"),
        ({"key_dim": 3}, "key_dim must be even"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        lambdanet.HaloAttention(8, **arguments)


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_local_attention_equals_the_loop_for_any_block(block_size, kind):
    layer = lambdanet.LocalAttention(8, num_heads=2, scope=3, block_size=block_size)
    x = images(2, 5, 6, 3)
    with device.assume(kind):
        outputs = layer(x.astype(np.float32))
    expected = naive_attention(
        *projected(layer, x), halves(layer), lambda n, m: max(abs(m[0] - n[0]), abs(m[1] - n[1])) <= 1
    )
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("map_size", "block_size", "strides"), [((7, 8), 3, 2), ((5, 6), 4, 3)])
def test_strides_may_not_divide_a_block(map_size, block_size, strides):
    layer = lambdanet.HaloAttention(4, 2, block_size, halo_size=1, strides=strides)
    x = images(2, *map_size, 3)
    outputs = layer(x.astype(np.float32))
    assert outputs.shape == layer.compute_output_shape(x.shape)
    np.testing.assert_allclose(outputs, naive_halo_attention(layer, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", ["halo", "local"])
def test_window_over_the_whole_map_equals_global_attention(make):
    x = tf.constant(images(2, 5, 4, 3), tf.float32)
    everywhere = lambdanet.GlobalAttention(8, num_heads=2)
    everywhere(x)
    if make == "halo":
        layer = lambdanet.HaloAttention(8, num_heads=2, block_size=2, halo_size=4)
    else:
        layer = lambdanet.LocalAttention(8, num_heads=2, scope=9, block_size=2)
    layer(x)
    center = layer.height_table.shape[0] // 2
    height, width = (table.numpy() for table in (layer.height_table, layer.width_table))
    everywhere.height_table.assign(np.pad(height[center - 4 : center + 5], [(0, 0), (0, 2)]))
    everywhere.width_table.assign(np.pad(width[center - 3 : center + 4], [(0, 0), (2, 0)]))
    everywhere.set_weights(everywhere.get_weights()[:2] + layer.get_weights()[2:])  # the same projections
    np.testing.assert_allclose(layer(x), everywhere(x), rtol=1e-5, atol=1e-5)


def test_blocks_of_one_position_give_local_attention():
    x = tf.constant(images(2, 5, 4, 3), tf.float32)
    halo = lambdanet.HaloAttention(8, num_heads=2, block_size=1, halo_size=2)
    local = lambdanet.LocalAttention(8, num_heads=2, scope=5)
    halo(x), local(x)
    height, width, *projections = halo.get_weights()  # tables of 2 (1 + 2 * 2) - 1 offsets
    local.set_weights([height[2:-2], width[2:-2], *projections])
    np.testing.assert_allclose(halo(x), local(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("make", "shift"), [("halo", (3, 6)), ("local", (2, 1))])
def test_translation_equivariance(make, shift):
    """Shifting the input shifts the output, where neither window meets the border; halos by whole blocks."""
    if make == "halo":
        layer = lambdanet.HaloAttention(8, num_heads=2, block_size=3, halo_size=2)
    else:
        layer = lambdanet.LocalAttention(8, num_heads=2, scope=5, block_size=3)
    x = images(1, 18, 18, 4).astype(np.float32)
    expected = np.roll(layer(x), shift, axis=(1, 2))
    outputs = layer(np.roll(x, shift, axis=(1, 2)))
    inner = slice(9, 15)
    np.testing.assert_allclose(outputs[:, inner, inner], expected[:, inner, inner], atol=1e-5)


@pytest.mark.parametrize("make", ["halo", "local"])
def test_one_function_serves_every_size(make):
    """Sizes known at tracing, where one block can do without its halo, and unknown ones agree."""
    if make == "halo":
        layer = lambdanet.HaloAttention(8, num_heads=2, block_size=4, halo_size=3)
    else:
        layer = lambdanet.LocalAttention(8, num_heads=2, block_size=4)
    traced = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 6])])
    for shape in ([2, 3, 4, 6], [1, 9, 5, 6], [3, 8, 12, 6]):
        x = tf.constant(images(*shape), tf.float32)
        np.testing.assert_allclose(traced(x), layer(x), atol=1e-5)


def test_joint_logits_of_an_unknown_size():
    layer = lambdanet.HaloAttention(32, num_heads=4, halo_size=1)
    with device.assume("TPU"):
        traced = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 6])])
        traced.get_concrete_function()
    for shape in ([1, 3, 8, 6], [2, 9, 17, 6]):
        x = tf.constant(images(*shape), tf.float32)
        np.testing.assert_allclose(traced(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("size", [16, None])
def test_graph_has_no_patches_or_indexed_gradients(size):
    layer = lambdanet.HaloAttention(8, num_heads=2, block_size=4, halo_size=3)

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x))
        return tape.gradient(loss, [x, *layer.trainable_weights])

    graph = tf.function(gradients).get_concrete_function(tf.TensorSpec([2, size, size, 6])).graph
    operations = {op.type for op in graph.get_operations()}
    assert "BatchMatMulV2" in operations
    assert not [name for name in operations if "Scatter" in name or "Patches" in name]


@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    ("is_joint", "layer"),
    [
        (True, partial(lambdanet.HaloAttention, 64, 4)),
        (True, partial(lambdanet.HaloAttention, 128, 8, mask_padding=False)),
        (True, partial(lambdanet.LocalAttention, 32, 4, scope=5)),
        (False, partial(lambdanet.HaloAttention, 64, 4, strides=2)),
        (False, partial(lambdanet.HaloAttention, 256, 8, 4, halo_size=1, mask_padding=False)),
        (False, partial(lambdanet.HaloAttention, 128, 2, 12)),
    ],
    ids=["one tile", "two tiles", "with a scope", "few queries", "small blocks", "a head per tile"],
)
def test_tpu_forms_equal_single_heads_with_gradients(is_joint, layer, dtype, monkeypatch):
    packed = []
    attend = packed_heads.attend
    monkeypatch.setattr(packed_heads, "attend", lambda *args: packed.append(1) or attend(*args))
    layer = layer(dtype=dtype)
    x = tf.constant(images(2, 12, 20, 16), layer.compute_dtype)

    def results():
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x)
            loss = tf.reduce_sum(tf.cast(outputs, layer.variable_dtype) ** 2)
        return [tf.cast(y, "float64") for y in (outputs, *tape.gradient(loss, [x, *layer.trainable_weights]))]

    expected = results()
    with device.assume("TPU"):
        for result, of_a_head in zip(results(), expected, strict=True):
            error = np.max(np.abs(result - of_a_head)) / np.max(np.abs(of_a_head))
            assert error < {"float64": 1e-13, "float32": 1e-5, "mixed_bfloat16": 4e-2}[dtype]
    assert len(packed) == (not is_joint)


@pytest.mark.parametrize(
    ("num_heads", "depth", "heads"),
    [(4, 16, 4), (8, 16, 8), (8, 32, 4), (8, 64, 2), (6, 40, 3), (8, 160, 1)],
)
def test_heads_per_tile(num_heads, depth, heads):
    assert packed_heads.heads_per_tile(num_heads, depth) == heads


@pytest.mark.parametrize(
    ("num_heads", "key_dim", "value_dim", "num_pairs", "heads"),
    [
        (4, 16, 16, 30, 4),
        (8, 16, 16, 30, 4),
        (8, 32, 32, 30, 2),
        (6, 20, 10, 30, 3),
        (8, 8, 4, 65, 4),
        (2, 64, 80, 9, 0),
    ],
)
def test_heads_per_tile_with_values_and_pairs(num_heads, key_dim, value_dim, num_pairs, heads):
    assert joint_logits.heads_per_tile(num_heads, key_dim, value_dim, num_pairs) == heads


def test_static_sizes_stay_static():
    layer = lambdanet.HaloAttention(8, num_heads=2, block_size=4, halo_size=3)
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec([2, 10, 13, 6])).graph
    assert all(output.shape.is_fully_defined() for op in graph.get_operations() for output in op.outputs)


def test_parameters_are_those_of_the_paper():
    """q and k: w -> w, v: w -> r_v w, and tables of 2 (b + 2 h) - 1 offsets by half a head."""
    layer = lambdanet.HaloAttention(128, num_heads=8, block_size=8, halo_size=3, value_ratio=2.5)
    layer.build([None, None, None, 128])
    assert layer.count_params() == 128 * 128 * (1 + 1 + 2.5) + 2 * (2 * (8 + 2 * 3) - 1) * 8
