# SPDX-License-Identifier: Apache-2.0
"""Wrong values of every argument of every layer are refused on one line with the argument and the value."""

import inspect
import re

import pytest
from refusals import refused

import lambdanet
from lambdanet.layers.layer import Layer

LAYERS = {
    name: layer
    for name in lambdanet.__all__
    if inspect.isclass(layer := getattr(lambdanet, name)) and issubclass(layer, Layer)
}
NAN = float("nan")
COUNT = (0, -1, 2.5, NAN, "3", True, None)
NATURAL = (-1, 2.5, NAN, "3", True, None)
ODD = (0, -3, 4, 2.5, NAN, "3", True)
SHARE = (-0.1, 1.5, NAN, "0.5", None)
FLAG = ("no", 2, NAN, None)
NAME = ("nonsense", 1, NAN, True)
# Values that an argument may not have; None may be the default of any.
WRONG = {
    **dict.fromkeys(
        (
            "block_size",
            "dilation",
            "filters",
            "intra_depth",
            "key_dim",
            "map_size",
            "multiple_of",
            "num_context",
            "num_heads",
            "num_lambdas",
            "num_queries",
            "pool_size",
            "strides",
        ),
        COUNT,
    ),
    **dict.fromkeys(("halo_size", "seed"), NATURAL),
    **dict.fromkeys(("kernel_size", "scope", "slice_scope"), ODD),
    **dict.fromkeys(
        (
            "compact_offsets",
            "constant_tables",
            "content",
            "mask_padding",
            "multi_head",
            "synchronized",
            "use_bias",
        ),
        FLAG,
    ),
    **dict.fromkeys(
        (
            "feature_map",
            "implementation",
            "key_normalization",
            "position",
            "positions",
            "query_normalization",
            "resize",
        ),
        NAME,
    ),
    "causal": ("tome", -1, 0, 4, 1.5, NAN, None),
    "embeddings_initializer": (
        "nrmal",
        0.1,
        {"class_name": "Zeros", "config": {"x": 1}},
    ),
    "batch_norm": ("no", 2, NAN, None, [0.9]),
    "rate": (*SHARE, 1),
    "ratio": (*SHARE, 0),
    "value_ratio": (0, -1, NAN, "1", None),
}
# Keras checks these, with messages of its own.
OF_KERAS = {"kernel_regularizer"}
REQUIRED = {lambdanet.StochasticDepth: {"rate": 0.5}}


def arguments_of(layer):
    """The arguments of a layer and of its base classes here, and their defaults."""
    defaults = {}
    for base in layer.__mro__:
        if issubclass(base, Layer) and "__init__" in vars(base):
            for name, parameter in inspect.signature(base).parameters.items():
                if parameter.kind not in (
                    parameter.VAR_POSITIONAL,
                    parameter.VAR_KEYWORD,
                ):
                    defaults.setdefault(name, parameter.default)
    return defaults


@pytest.mark.parametrize(
    ("layer", "argument"),
    [
        (layer, argument)
        for layer, cls in LAYERS.items()
        for argument in arguments_of(cls)
        if argument not in OF_KERAS
    ],
)
def test_wrong_values_are_refused(layer, argument):
    layer = LAYERS[layer]
    default = arguments_of(layer)[argument]
    for value in WRONG[argument]:
        if value is None and default is None:
            continue
        with refused(re.escape(repr(value))) as error:
            layer(**{**REQUIRED.get(layer, {}), argument: value})
        assert argument in str(error.value).replace(" ", "_")
