# SPDX-License-Identifier: Apache-2.0
"""Random causal networks in random chunks, which equal the whole."""

import random

import numpy as np
import pytest
from fuzzing import rounds
from helpers import assert_near
from keras import Input, Model, layers
from naive_layers import images, randomize

import lambdanet
from lambdanet import backend as K
from lambdanet.layers.old_arguments import translate


def pointwise(x, dice):
    layer = dice.choice(
        [
            layers.Activation("gelu"),
            layers.BatchNormalization(),
            layers.Dense(dice.choice([3, 6])),
            layers.Dropout(0.2),
            layers.LayerNormalization(),
            layers.Rescaling(0.5, 0.1),
        ]
    )
    return layer(x)


def causal_lambda(x, dice, strides=1, filters=6):
    options = dict(
        filters=filters,
        num_heads=dice.choice([1, filters]),
        key_dim=dice.choice([2, 4]),
        intra_depth=dice.choice([1, 2]),
        scope=dice.choice([1, 3, 7]),
        dilation=dice.choice([1, 2]),
        position=dice.choice(["relative", "relative", None]),
        key_normalization=dice.choice(["softmax", "softmax", "l2", None]),
        multi_head=dice.choice([False, True]),
        position_bias=dice.choice([False, True]),
        strides=strides,
        causal=dice.choice([True, "time"]),
    )
    return lambdanet.LambdaLayer(**translate(options))(x)


def convolution(x, dice, strides=1, filters=6):
    dilation = dice.choice([1, 3]) if strides == 1 else 1
    size = dice.choice([1, 2, 4])
    layer = layers.Conv1D(
        filters, size, strides, "causal", dilation_rate=dilation, use_bias=False
    )
    return layer(x)


def pool(x, dice, strides=1):
    size = dice.choice([strides, 3])
    kind = dice.choice([layers.AveragePooling1D, layers.MaxPooling1D])
    if size > strides:
        x = layers.ZeroPadding1D((size - strides, 0))(x)
    return kind(size, strides)(x)


def branches(x, dice):
    merge = dice.choice(
        [
            layers.Add,
            layers.Average,
            layers.Concatenate,
            layers.Maximum,
            layers.Subtract,
        ]
    )
    function = dice.choice([causal_lambda, convolution])
    return merge()([x, function(x, dice, filters=x.shape[-1])])


def random_network(dice):
    """A network of three to six parts, and its strides."""
    x = inputs = Input([None, 4])
    total = 1
    for _ in range(dice.randint(3, 6)):
        part = dice.choice([branches, causal_lambda, convolution, pointwise, pool])
        strides = 1
        if part in (causal_lambda, convolution, pool) and total < 8:
            strides = dice.choice([1, 1, 2])
        x = part(x, dice) if strides == 1 else part(x, dice, strides)
        total *= strides
    model = Model(inputs, x)
    randomize(model)
    return model, total


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(rounds(6)))
def test_random_networks_equal_the_whole(seed):
    dice = random.Random(seed)
    model, strides = random_network(dice)
    lengths = [dice.choice([1, 2, 5]) * strides for _ in range(5)]
    streams = {n: lambdanet.streaming_model(model, n) for n in {*lengths}}
    x = images(2, sum(lengths), 4)
    state = streams[lengths[0]].initial_state(2)
    outputs = []
    for length, end in zip(lengths, np.cumsum(lengths), strict=True):
        y, state = streams[length].step(x[:, end - length : end], state)
        outputs.append(K.convert_to_numpy(y))
    expected = K.convert_to_numpy(model(x))
    assert_near(np.concatenate(outputs, axis=1), expected, 1e-5)
