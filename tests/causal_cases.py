# SPDX-License-Identifier: Apache-2.0
"""Causal lambda layers, with every option that a state supports."""

from naive_layers import images, randomize

import lambdanet
from lambdanet.layers.old_arguments import translate

SEQUENCE = (2, 8, 6)
# Arguments of a layer, the shape of its input, and the causal axis of that.
CASES = {
    "both": ({}, SEQUENCE, 1),
    "content": ({"position": None}, SEQUENCE, 1),
    "positions": ({"content": False, "dilation": 2}, SEQUENCE, 1),
    "one position": ({"scope": 1}, SEQUENCE, 1),
    "l2": ({"key_normalization": "l2"}, SEQUENCE, 1),
    "unnormalized": ({"key_normalization": None}, SEQUENCE, 1),
    "strides": ({"strides": 2}, SEQUENCE, 1),
    "lambdas": (
        {"multi_head": True, "intra_depth": 2, "position_bias": True},
        SEQUENCE,
        1,
    ),
    "video": (
        {"causal": "time", "scope": (3, 5, None), "strides": (1, 2, 1)},
        (2, 6, 4, 3, 6),
        1,
    ),
    "width": (
        {"causal": 2, "scope": (None, 3), "strides": (2, 1), "pool_size": (3, 1)},
        (2, 5, 6, 6),
        2,
    ),
}


# These can have no state.
ALL = {
    **CASES,
    "whole sequence": ({"scope": None}, SEQUENCE, 1),
    "unstructured": ({"position": "unstructured"}, SEQUENCE, 1),
    "spectrogram": ({"causal": 2, "scope": (None, 5)}, (2, 4, 5, 6), 2),
    "unstructured video": (
        {"causal": 3, "position": "unstructured", "strides": 2, "multi_head": True},
        (2, 2, 3, 4, 6),
        3,
    ),
}


def arguments_of(options):
    """The arguments of a causal layer with these options."""
    return translate({"scope": 5, "causal": True, **options})


def case_of(name):
    """Returns a layer with random weights, its input, and the causal axis of that."""
    options, shape, axis = ALL[name]
    layer = lambdanet.LambdaLayer(8, **arguments_of(options))
    layer.build(shape)
    randomize(layer)
    x = images(*shape)
    return layer, x, axis
