# SPDX-License-Identifier: Apache-2.0
"""Every layer of the library with small options, for the tests of what all layers keep."""

import lambdanet

LAYERS = {
    "AxialAttention": lambda **kwargs: lambdanet.AxialAttention(8, num_heads=2, map_size=9, **kwargs),
    "ChannelAffine": lambda **kwargs: lambdanet.ChannelAffine(**kwargs),
    "CenteredMaxPooling2D": lambda **kwargs: lambdanet.CenteredMaxPooling2D(3, 1, **kwargs),
    "EfficientChannelAttention": lambda **kwargs: lambdanet.EfficientChannelAttention(**kwargs),
    "GlobalAttention": lambda **kwargs: lambdanet.GlobalAttention(8, num_heads=2, map_size=9, **kwargs),
    "HaloAttention": lambda **kwargs: lambdanet.HaloAttention(4, 2, 4, value_ratio=2.0, **kwargs),
    "HaloAttention_added": lambda **kwargs: lambdanet.HaloAttention(
        8, 2, 4, key_dim=3, positions="added", mask_padding=False, **kwargs
    ),
    "LambdaLayer": lambda **kwargs: lambdanet.LambdaLayer(8, num_heads=2, key_dim=4, scope=5, **kwargs),
    "LambdaLayer_u": lambda **kwargs: lambdanet.LambdaLayer(8, num_heads=2, intra_depth=2, scope=3, **kwargs),
    "LambdaLayer_conv": lambda **kwargs: lambdanet.LambdaLayer(8, scope=5, implementation="conv", **kwargs),
    "LinearAttention": lambda **kwargs: lambdanet.LinearAttention(8, num_heads=2, **kwargs),
    "LinearAttention_elu": lambda **kwargs: lambdanet.LinearAttention(8, 2, feature_map="elu", **kwargs),
    "LocalAttention": lambda **kwargs: lambdanet.LocalAttention(8, num_heads=2, scope=3, **kwargs),
    "LambdaLayer_blocked": lambda **kwargs: lambdanet.LambdaLayer(
        8, scope=3, implementation="blocked", **kwargs
    ),
    "LambdaLayer_global": lambda **kwargs: lambdanet.LambdaLayer(8, scope=None, map_size=9, **kwargs),
    "LambdaLayer_resized": lambda **kwargs: lambdanet.LambdaLayer(
        8, scope=None, map_size=4, resize="interpolate", position_bias=True, **kwargs
    ),
    "LambdaLayer_content": lambda **kwargs: lambdanet.LambdaLayer(
        8, position=None, key_normalization="l2", query_normalization="softmax", **kwargs
    ),
    "LambdaLayer_multi_head": lambda **kwargs: lambdanet.LambdaLayer(
        8, 2, scope=5, multi_head=True, use_batch_norm=False, dilation=2, **kwargs
    ),
    "LambdaLayer_shared": lambda **kwargs: lambdanet.LambdaLayer(
        8, position=lambdanet.RelativePositionEmbedding(scope=5), content=False, **kwargs
    ),
    "SqueezeExcite": lambda **kwargs: lambdanet.SqueezeExcite(0.5, **kwargs),
    "StochasticDepth": lambda **kwargs: lambdanet.StochasticDepth(0.5, seed=1, **kwargs),
}
