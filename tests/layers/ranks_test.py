# SPDX-License-Identifier: Apache-2.0
"""Every layer takes the shapes that it describes, and refuses others in one line."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, images
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer
from lambdanet.core.errors import InputError

MAPS = (r"\[b, h, w, c\]", (2, 3, 5))
# Each layer, its arguments, the axes that it takes, and the ranks that it refuses.
RANKS = {
    "PooledBatchNormalization": ([], *MAPS),
    "SqueezeExcite": ([], *MAPS),
    "EfficientChannelAttention": ([], *MAPS),
    "CenteredMaxPooling2D": ([], *MAPS),
    "GlobalAttention": ([8], *MAPS),
    "AxialAttention": ([8], *MAPS),
    "LinearAttention": ([8], *MAPS),
    "HaloAttention": ([8, 2], *MAPS),
    "LocalAttention": ([8, 2], *MAPS),
    "LambdaLayer": ([8], r"\[b, n, c\]", (2, 6)),
    "SliceLambdaLayer": ([8], r"slices, h, w, c\]", (2, 3, 4)),
}


@pytest.mark.parametrize("name", RANKS)
def test_other_ranks_are_refused(name):
    """By a new layer, and by one that was built for another rank, also in a graph."""
    arguments, accepted, ranks = RANKS[name]
    kind = getattr(lambdanet, name)
    for rank in ranks:
        with refused(accepted):
            kind(*arguments)(images(2, *[4] * (rank - 2), 8))
    layer = kind(*arguments)
    layer(images(2, *[4] * (3 if name == "SliceLambdaLayer" else 2), 8))
    if kind is LambdaLayer:
        accepted, _ = MAPS
    for rank in {*ranks, 3}:
        x = images(2, *[4] * (rank - 2), 8)
        with refused(accepted):
            layer(x)
        with refused(accepted):
            tf.function(layer, autograph=False)(x)


def test_normalized_maps_have_their_channels_last():
    with refused("axis of PooledBatchNormalization must be -1"):
        lambdanet.PooledBatchNormalization(axis=1)(images(2, 4, 4, 8))


def test_context_has_the_examples_of_the_inputs():
    layer = LambdaLayer(8)
    for b in (1, 3):
        with refused("the number of examples of the context must be 2"):
            layer(images(2, 4, 8), context=images(b, 6, 8))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(6, 4), (24, 1), (1, 24)])
def test_padding_masks_of_other_shapes_do_not_run(shape, compiled):
    """In a graph of unknown sizes, whose trace cannot tell [4, 6] from [6, 4]."""
    layer = LambdaLayer(8, scope=3)
    x = images(4, 6, 8)
    layer(x)
    specs = [tf.TensorSpec([None, None, 8]), tf.TensorSpec([None, None], tf.bool)]
    call = tf.function(
        lambda x, mask: layer(x, padding_mask=mask),
        input_signature=specs,
        jit_compile=compiled,
        autograph=False,
    )
    visible = np.arange(6) < [[3], [6], [1], [4]]
    expected = layer(x, padding_mask=visible)
    assert_close(call(x, visible), expected, 1e-5)
    wrong = np.reshape(visible, shape)
    with pytest.raises((tf.errors.OpError, InputError)):
        call(x, tf.constant(wrong))


def test_second_derivatives_of_a_convolution():
    """Of a sum of squares: the Hessian is symmetric, and equals that of the einsum."""
    x = images(1, 4, 4, 2)
    found = []
    for implementation in ("conv", "einsum"):
        layer = LambdaLayer(2, 1, 2, scope=3, implementation=implementation)
        layer.build(x.shape)
        layer.set_weights([np.ones(w.shape) / 2 for w in layer.weights])
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(layer(x) ** 2)
            slopes = inner.gradient(y, x)
        found.append(outer.gradient(slopes, x))
    assert_close(*found, 1e-4)
