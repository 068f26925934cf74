# SPDX-License-Identifier: Apache-2.0
"""Every layer of the library with small options, for the tests of what all layers keep."""

from functools import partial

import lambdanet
from lambdanet import HaloAttention, LambdaLayer, LinearAttention


def with_positions(**options):
    """A function that makes a layer, whose relative positions have these arguments."""
    options = {"name": "position", **options}

    def make(**kwargs):
        return LambdaLayer(
            8, position=lambdanet.RelativePositionEmbedding(**options), **kwargs
        )

    return make


LAYERS = {
    "AxialAttention": partial(lambdanet.AxialAttention, 8, num_heads=2, map_size=9),
    "ChannelAffine": lambdanet.ChannelAffine,
    "CenteredMaxPooling2D": partial(lambdanet.CenteredMaxPooling2D, 3, 1),
    "EfficientChannelAttention": lambdanet.EfficientChannelAttention,
    "GlobalAttention": partial(lambdanet.GlobalAttention, 8, num_heads=2, map_size=9),
    "HaloAttention": partial(HaloAttention, 4, 2, 4, value_ratio=2.0),
    "HaloAttention_added": partial(
        HaloAttention, 8, 2, 4, key_dim=3, positions="added", mask_padding=False
    ),
    "LambdaLayer": partial(LambdaLayer, 8, num_heads=2, key_dim=4, scope=5),
    "LambdaLayer_u": partial(
        LambdaLayer, 8, 2, intra_depth=2, scope=3, embeddings_initializer="ones"
    ),
    "LambdaLayer_conv": partial(LambdaLayer, 8, scope=5, implementation="conv"),
    "LinearAttention": partial(LinearAttention, 8, num_heads=2),
    "LinearAttention_elu": partial(LinearAttention, 8, 2, feature_map="elu"),
    "LocalAttention": partial(lambdanet.LocalAttention, 8, num_heads=2, scope=3),
    "LambdaLayer_blocked": partial(LambdaLayer, 8, scope=3, implementation="blocked"),
    "LambdaLayer_global": with_positions(scope=None, map_size=9),
    "LambdaLayer_axes": with_positions(scope=(3, None), map_size=9, dilation=(2, 1)),
    "LambdaLayer_resized": with_positions(
        scope=None, map_size=4, resize="interpolate", use_bias=True
    ),
    "LambdaLayer_content": partial(
        LambdaLayer,
        8,
        position=None,
        key_normalization="l2",
        query_normalization="softmax",
    ),
    "LambdaLayer_multi_head": partial(
        with_positions(scope=5, dilation=2),
        num_heads=2,
        multi_head=True,
        batch_norm=False,
    ),
    "LambdaLayer_reference": partial(
        with_positions(scope=5, dilation=2), implementation="reference"
    ),
    "LambdaLayer_shared": partial(
        with_positions(scope=5, name="embedding"), content=False
    ),
    "SqueezeExcite": partial(lambdanet.SqueezeExcite, 0.5),
    "StochasticDepth": partial(lambdanet.StochasticDepth, 0.5, seed=1),
}
