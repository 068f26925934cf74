# SPDX-License-Identifier: Apache-2.0
"""The network of the arena: a stem, an operator in each of the same places, and a readout.

    x = stem(inputs);    x = x + projection(relu(operator(norm(x)))) per mixer;    readout(norm(x))

Stem, projection and readout are 1x1. The width of `x` and that of the operator, which is about the same, are
chosen such that all operators have the same number of parameters.
"""

import functools
from typing import NamedTuple

from experiments.arena.operators import NUM_HEADS, OPERATORS
from experiments.arena.settings import Setup
from lambdanet.backend import keras
from lambdanet.models import complexity

TOLERANCE = 0.01  # of the number of parameters
NEAR = (0, -1, 1, -2, 2, -3, 3)  # steps of the operator's width from the nearest one


class Widths(NamedTuple):
    """The channels of the network and of its operators."""

    channels: int
    filters: int


def build_network(setup: Setup, widths: Widths | None = None) -> keras.Model:
    """Returns the network of a task and an operator, by default with the widths of `match_widths`."""
    channels, filters = widths or match_widths(setup)
    task = setup.task
    inputs = keras.Input(task.shape)
    x = keras.layers.Dense(channels)(inputs)
    for letter in setup.placement or "O" * task.mixers:
        operator = (
            OPERATORS["convolution"] if letter == "C" else OPERATORS[setup.operator]
        )
        build = operator.causal if task.causal else operator.on_map
        assert build
        mix = build(filters, **({} if letter == "C" else setup.options))
        y = keras.layers.ReLU()(mix(keras.layers.LayerNormalization()(x)))
        x = keras.layers.Add()([x, keras.layers.Dense(channels)(y)])
    x = keras.layers.LayerNormalization()(x)
    if task.pooled:
        x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(task.classes)(x))


@functools.cache
def match_widths(setup: Setup) -> Widths:
    """Returns the widths that give `setup.parameters` within `TOLERANCE`, as equal to each other as possible.

    The number of parameters is linear in the channels, so two networks give the line.
    """

    def channels(filters: int) -> tuple[int, float]:
        """Returns the channels that belong to an operator's width, and the relative error that remains."""
        few, many = (
            complexity.count_parameters(build_network(setup, Widths(c, filters)))
            for c in (8, 40)
        )
        slope = (many - few) / 32
        number = max(1, round(8 + (setup.parameters - few) / slope))
        return number, abs(
            few + slope * (number - 8) - setup.parameters
        ) / setup.parameters

    # In heads; the channels decrease with the operator's width
    low = 1
    high = 64
    while low < high:
        middle = (low + high) // 2
        if channels(NUM_HEADS * middle)[0] > NUM_HEADS * middle:
            low = middle + 1
        else:
            high = middle
    for steps in NEAR:
        filters = NUM_HEADS * max(1, low + steps)
        number, error = channels(filters)
        if error <= TOLERANCE:
            return Widths(number, filters)
    raise AssertionError(f"no width of {setup} gives the number of parameters")
