# SPDX-License-Identifier: Apache-2.0
"""HaloNets: sizes by hand, odd image sizes, and the placement of attention."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import images
from small_models import few_block_model, small_model

import lambdanet
from lambdanet.backend import compat
from lambdanet.models import halonet


@pytest.mark.parametrize("name", ["h0", "h4", "h6"])
def test_parameters_by_hand(name):
    """The block of the paper: w -> attention r_v w -> r_b w, with norms, and a projection in each stage."""
    _, block, halo, values, bottleneck, l3, final = halonet.FAMILY[name]
    total, channels = 7 * 7 * 3 * 64 + 2 * 64, 64
    for w, heads, depth in zip((64, 128, 256, 512), (4, 8, 8, 8), (3, 3, l3, 3), strict=True):
        outputs = bottleneck * w
        for index in range(depth):
            total += channels * w + 2 * w
            total += 2 * w * w + w * values * w + 2 * values * w
            total += 2 * (2 * (block + 2 * halo) - 1) * (w // heads // 2)
            total += values * w * outputs + 2 * outputs
            total += channels * outputs + 2 * outputs if index == 0 else 0
            channels = outputs
    if final:
        total, channels = total + channels * final + 2 * final, final
    assert lambdanet.model_info(f"halonet_{name}", input_size=64).params == total + channels * 1000 + 1000


def test_heads_and_blocks_of_the_stages():
    with compat.without_values():
        model = lambdanet.create_model("halonet_h4")
    layers = [layer for layer in model.layers if isinstance(layer, lambdanet.HaloAttention)]
    assert [layer.num_heads for layer in layers] == [4] * 3 + [8] * (3 + 12 + 3)
    assert {(layer.block_size, layer.halo_size) for layer in layers} == {(12, 2)}


def test_features_of_images_that_do_not_divide():
    model = lambdanet.create_model("halonet_h1", features_only=True)
    for height, width in [(75, 50), (64, 96)]:
        shapes = {level: tuple(x.shape) for level, x in model(images(1, height, width, 3)).items()}
        assert shapes == {
            str(level): (1, -(-height // 2**level), -(-width // 2**level), 64 * 2 ** (level - 2))
            for level in (2, 3, 4, 5)
        }


def test_h7_at_600_pixels():
    """The maps are 150, 75, 38 and 19 wide, for blocks of 10."""
    with compat.without_values():
        model = few_block_model("halonet_h7", input_size=600)
    shapes = [model.get_layer(f"c{level}_block2_act").output_shape[1:] for level in (2, 3, 4, 5)]
    assert shapes == [(150, 150, 224), (75, 75, 448), (38, 38, 896), (19, 19, 1792)]


def test_queries_of_a_strided_block():
    with compat.without_values():
        model = lambdanet.create_model("halonet_h1", features_only=True)
    strided = [x.name for x in model.layers if isinstance(x, lambdanet.HaloAttention) and x.strides == 2]
    assert strided == [f"c{stage}_block1_spatial" for stage in (3, 4, 5)]
    assert not [x.name for x in model.layers if "pool" in x.name and x.name.startswith("c")]


def test_hybrids_and_detection_networks():
    def attention(name, **options):
        with compat.without_values():
            model = lambdanet.create_model(name, features_only=True, **options)
        gates = {x.name[:2] for x in model.layers if isinstance(x, lambdanet.SqueezeExcite)}
        return [x for x in model.layers if isinstance(x, lambdanet.HaloAttention)], gates

    layers, gates = attention("halonet_h4_c12")
    assert {layer.name[:2] for layer in layers} == {"c4", "c5"} and gates == {"c2", "c3"}
    layers, gates = attention("halo_resnet_50", block_size=32)
    assert [layer.name for layer in layers] == [f"c5_block{i}_spatial" for i in (1, 2, 3)]
    assert {(x.block_size, x.halo_size) for x in layers} == {(32, 3)} and gates == {"c2", "c3", "c4"}


@pytest.mark.parametrize("name", ["halonet_h1", "halonet_h4_base128_patch"])
def test_gradients_reach_every_weight(name):
    model = small_model(name)
    for weight in model.trainable_weights:
        if "gamma" in weight.name:  # zero gammas hide the blocks behind them
            weight.assign(tf.ones_like(weight))
    with tf.GradientTape() as tape:
        logits = model(images(4, 64, 64, 3), training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2, 0], logits))
    gradients = tape.gradient(loss, model.trainable_weights)
    names = [w.name for w in model.trainable_weights]
    assert [n for n, g in zip(names, gradients, strict=True) if not np.abs(g).max() > 0] == []
