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
    from lambdanet.attention import AxialAttention, GlobalAttention, LinearAttention
    from lambdanet.centred_max_pooling import CentredMaxPooling2D
    from lambdanet.efficient_channel_attention import EfficientChannelAttention
    from lambdanet.halo_attention import HaloAttention, LocalAttention
    from lambdanet.lambda_layer import LambdaLayer
    from lambdanet.models.names import list_models
    from lambdanet.models.preprocessing import preprocess_for
    from lambdanet.models.zoo import create_model, model_info
    from lambdanet.pooled_batch_norm import PooledBatchNormalization
    from lambdanet.position_embedding import RelativePositionEmbedding, UnstructuredPositionEmbedding
    from lambdanet.squeeze_excite import SqueezeExcite
    from lambdanet.stochastic_depth import StochasticDepth

__version__ = "0.1.0"

_HOMES = {
    "AxialAttention": "lambdanet.attention",
    "CentredMaxPooling2D": "lambdanet.centred_max_pooling",
    "EfficientChannelAttention": "lambdanet.efficient_channel_attention",
    "GlobalAttention": "lambdanet.attention",
    "HaloAttention": "lambdanet.halo_attention",
    "LambdaLayer": "lambdanet.lambda_layer",
    "LinearAttention": "lambdanet.attention",
    "LocalAttention": "lambdanet.halo_attention",
    "PooledBatchNormalization": "lambdanet.pooled_batch_norm",
    "RelativePositionEmbedding": "lambdanet.position_embedding",
    "SqueezeExcite": "lambdanet.squeeze_excite",
    "StochasticDepth": "lambdanet.stochastic_depth",
    "UnstructuredPositionEmbedding": "lambdanet.position_embedding",
    "create_model": "lambdanet.models.zoo",
    "list_models": "lambdanet.models.names",
    "model_info": "lambdanet.models.zoo",
    "preprocess_for": "lambdanet.models.preprocessing",
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
