# SPDX-License-Identifier: Apache-2.0
"""lambdanet: LambdaNetworks (Bello 2021) for TensorFlow and tf_keras.

The public names below are loaded when they are first used, so that `import lambdanet` and the help of the
command line cost no start of TensorFlow. `import lambdanet.models.zoo` registers all layers with Keras, which
`load_model` needs.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lambdanet import ops
    from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
    from lambdanet.layers.centered_max_pooling import CentredMaxPooling2D
    from lambdanet.layers.efficient_channel_attention import EfficientChannelAttention
    from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
    from lambdanet.layers.lambda_layer import LambdaLayer
    from lambdanet.layers.pooled_batch_norm import PooledBatchNormalization
    from lambdanet.layers.position_embedding import RelativePositionEmbedding, UnstructuredPositionEmbedding
    from lambdanet.layers.squeeze_excite import SqueezeExcite
    from lambdanet.layers.stochastic_depth import StochasticDepth
    from lambdanet.models.names import list_models
    from lambdanet.models.preprocessing.preprocessing import preprocess_for
    from lambdanet.models.zoo import create_model, model_info

__version__ = "0.1.0"

_HOMES = {
    "AxialAttention": "lambdanet.layers.attention",
    "CentredMaxPooling2D": "lambdanet.layers.centered_max_pooling",
    "EfficientChannelAttention": "lambdanet.layers.efficient_channel_attention",
    "GlobalAttention": "lambdanet.layers.attention",
    "HaloAttention": "lambdanet.layers.halo_attention",
    "LambdaLayer": "lambdanet.layers.lambda_layer",
    "LinearAttention": "lambdanet.layers.attention",
    "LocalAttention": "lambdanet.layers.halo_attention",
    "PooledBatchNormalization": "lambdanet.layers.pooled_batch_norm",
    "RelativePositionEmbedding": "lambdanet.layers.position_embedding",
    "SqueezeExcite": "lambdanet.layers.squeeze_excite",
    "StochasticDepth": "lambdanet.layers.stochastic_depth",
    "UnstructuredPositionEmbedding": "lambdanet.layers.position_embedding",
    "create_model": "lambdanet.models.zoo",
    "list_models": "lambdanet.models.names",
    "model_info": "lambdanet.models.zoo",
    "preprocess_for": "lambdanet.models.preprocessing.preprocessing",
}

__all__ = [
    "AxialAttention",
    "CentredMaxPooling2D",
    "EfficientChannelAttention",
    "GlobalAttention",
    "HaloAttention",
    "LambdaLayer",
    "LinearAttention",
    "LocalAttention",
    "PooledBatchNormalization",
    "RelativePositionEmbedding",
    "SqueezeExcite",
    "StochasticDepth",
    "UnstructuredPositionEmbedding",
    "create_model",
    "list_models",
    "model_info",
    "ops",
    "preprocess_for",
]


def __getattr__(name: str):
    if name == "ops":
        return importlib.import_module("lambdanet.ops")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lambdanet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
