# SPDX-License-Identifier: Apache-2.0
"""lambdanet: LambdaNetworks (Bello 2021) for Keras on TensorFlow, JAX and torch.

The public names are imported on first use, so `import lambdanet` and the help of the command line do not
import Keras. Where Keras is imported before, all layers and models are registered with it, as `load_model`
needs; elsewhere `import lambdanet.models.zoo` does that.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `as` marks the names as public for type checkers
    from lambdanet import explain as explain
    from lambdanet import ops as ops
    from lambdanet.core.freed_memory import keep_memory as keep_memory
    from lambdanet.core.onednn import use_onednn as use_onednn
    from lambdanet.layers.attention import AxialAttention as AxialAttention
    from lambdanet.layers.attention import GlobalAttention as GlobalAttention
    from lambdanet.layers.attention import LinearAttention as LinearAttention
    from lambdanet.layers.batch_norm import ChannelAffine as ChannelAffine
    from lambdanet.layers.batch_norm import (
        PooledBatchNormalization as PooledBatchNormalization,
    )
    from lambdanet.layers.centered_max_pooling import (
        CenteredMaxPooling2D as CenteredMaxPooling2D,
    )
    from lambdanet.layers.channel_attention import (
        EfficientChannelAttention as EfficientChannelAttention,
    )
    from lambdanet.layers.channel_attention import SqueezeExcite as SqueezeExcite
    from lambdanet.layers.halo_attention import HaloAttention as HaloAttention
    from lambdanet.layers.halo_attention import LocalAttention as LocalAttention
    from lambdanet.layers.lambda_layer import LambdaLayer as LambdaLayer
    from lambdanet.layers.position_embedding import (
        RelativePositionEmbedding as RelativePositionEmbedding,
    )
    from lambdanet.layers.position_embedding import (
        UnstructuredPositionEmbedding as UnstructuredPositionEmbedding,
    )
    from lambdanet.layers.slice_lambda_layer import SliceLambdaLayer as SliceLambdaLayer
    from lambdanet.layers.stochastic_depth import StochasticDepth as StochasticDepth
    from lambdanet.models.as_tf_keras import as_tf_keras as as_tf_keras
    from lambdanet.models.classifier import class_names as class_names
    from lambdanet.models.classifier import decode_predictions as decode_predictions
    from lambdanet.models.classifier import replace_classifier as replace_classifier
    from lambdanet.models.deeplab import create_deeplab as create_deeplab
    from lambdanet.models.inference import for_inference as for_inference
    from lambdanet.models.inflate import inflate as inflate
    from lambdanet.models.names import list_models as list_models
    from lambdanet.models.preprocessing import preprocess_for as preprocess_for
    from lambdanet.models.sequences import (
        create_sequence_model as create_sequence_model,
    )
    from lambdanet.models.sliding_window import sliding_window as sliding_window
    from lambdanet.models.streaming import streaming_model as streaming_model
    from lambdanet.models.unet import create_unet as create_unet
    from lambdanet.models.weights.layer_rules import convert_layer as convert_layer
    from lambdanet.models.zoo import create_model as create_model
    from lambdanet.models.zoo import model_info as model_info
    from lambdanet.tpu_estimates.check import tpu_check as tpu_check

__version__ = "0.1.0"

_EXPORTS = {
    "lambdanet.core.freed_memory": ("keep_memory",),
    "lambdanet.layers.attention": (
        "AxialAttention",
        "GlobalAttention",
        "LinearAttention",
    ),
    "lambdanet.layers.batch_norm": ("ChannelAffine", "PooledBatchNormalization"),
    "lambdanet.layers.centered_max_pooling": ("CenteredMaxPooling2D",),
    "lambdanet.layers.channel_attention": (
        "EfficientChannelAttention",
        "SqueezeExcite",
    ),
    "lambdanet.layers.halo_attention": ("HaloAttention", "LocalAttention"),
    "lambdanet.layers.lambda_layer": ("LambdaLayer",),
    "lambdanet.layers.position_embedding": (
        "RelativePositionEmbedding",
        "UnstructuredPositionEmbedding",
    ),
    "lambdanet.layers.slice_lambda_layer": ("SliceLambdaLayer",),
    "lambdanet.layers.stochastic_depth": ("StochasticDepth",),
    "lambdanet.models.classifier": (
        "class_names",
        "decode_predictions",
        "replace_classifier",
    ),
    "lambdanet.models.deeplab": ("create_deeplab",),
    "lambdanet.models.inference": ("for_inference",),
    "lambdanet.models.inflate": ("inflate",),
    "lambdanet.models.names": ("list_models",),
    "lambdanet.models.preprocessing": ("preprocess_for",),
    "lambdanet.models.sequences": ("create_sequence_model",),
    "lambdanet.models.sliding_window": ("sliding_window",),
    "lambdanet.models.streaming": ("streaming_model",),
    "lambdanet.models.unet": ("create_unet",),
    "lambdanet.models.as_tf_keras": ("as_tf_keras",),
    "lambdanet.models.weights.layer_rules": ("convert_layer",),
    "lambdanet.models.zoo": ("create_model", "model_info"),
    "lambdanet.core.onednn": ("use_onednn",),
    "lambdanet.tpu_estimates.check": ("tpu_check",),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted([*_MODULES, "explain", "ops"])


def __getattr__(name: str) -> Any:
    if name in ("explain", "ops"):
        return importlib.import_module(f"lambdanet.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'lambdanet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


if sys.modules.get("keras"):
    importlib.import_module("lambdanet.models.zoo")
