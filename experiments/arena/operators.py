# SPDX-License-Identifier: Apache-2.0
"""The operators of the arena, one row each: functions from a map to a map with a number of channels."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.layers.attention import GlobalAttention, LinearAttention
from lambdanet.layers.channel_attention import SqueezeExcite
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.models import complexity
from lambdanet.ops import attention

# Of all operators that have them.
NUM_HEADS = 4
KEY_DIM = 16
SCOPE = 7
HEADS = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM}

Mixer = Callable[[K.Tensor], K.Tensor]


class Operator(NamedTuple):
    """An operator.

    Attributes:
      title: its name in tables.
      on_map: returns it for a number of channels, with options; applied to [b, h, w, c].
      causal: the same for sequences, [b, n, c], where a position sees those up to it; None: there is none.
    """

    title: str
    on_map: Callable[..., Mixer]
    causal: Callable[..., Mixer] | None = None


class CausalAttention(GlobalAttention):
    """Global attention with relative positions on maps [b, n, 1, c], to the positions up to the query."""

    def call(self, inputs: K.Tensor) -> K.Tensor:
        n = inputs.shape[1]
        queries, keys, values = (
            x[:, :, 0] for x in self._project_heads(inputs, self._qkv)
        )
        offsets = np.arange(n) - np.arange(n)[:, np.newaxis]
        tables = K.take(self._tables([n, 1])[0], offsets + n - 1, axis=0)  # [n, m, k]
        logits = K.einsum("bnk,bmk->bnm", queries, keys) + K.einsum(
            "bnk,nmk->bnm", queries, tables
        )
        weights = K.softmax(K.where(offsets > 0, -1e9, logits))
        outputs = K.matmul(weights, values)[:, :, K.newaxis]  # [b * heads, n, 1, v]
        return attention.merge_heads(outputs, self.num_heads)


complexity.MULTIPLY_ADDS[CausalAttention] = complexity.MULTIPLY_ADDS[GlobalAttention]


def convolution(filters: int) -> Mixer:
    return lambda x: keras.layers.Conv2D(
        filters, _kernel(3, x), padding="same", use_bias=False
    )(x)


def depthwise(filters: int) -> Mixer:
    """A depthwise convolution after a projection, as all other operators begin with one."""

    def mix(x: K.Tensor) -> K.Tensor:
        x = keras.layers.Dense(filters)(x)
        return keras.layers.DepthwiseConv2D(
            _kernel(7, x), padding="same", use_bias=False
        )(x)

    return mix


def _kernel(size: int, x: K.Tensor) -> list[int]:
    """Returns the size of a kernel, without the weights that would see nothing on a map of width 1."""
    return [size, size if x.shape[2] > 1 else 1]


def squeeze_excite(filters: int) -> Mixer:
    return lambda x: SqueezeExcite()(convolution(filters)(x))


def causal_convolution(filters: int) -> Mixer:
    return lambda x: _causal(x, keras.layers.Conv2D(filters, [3, 1], use_bias=False))


def causal_depthwise(filters: int) -> Mixer:
    convolve = keras.layers.DepthwiseConv2D([7, 1], use_bias=False)
    return lambda x: _causal(keras.layers.Dense(filters)(x), convolve)


def _causal(x: K.Tensor, convolve: keras.layers.Layer) -> K.Tensor:
    n, channels = x.shape[1:]
    x = keras.layers.Reshape([n, 1, channels])(x)
    x = convolve(
        keras.layers.ZeroPadding2D([[convolve.kernel_size[0] - 1, 0], [0, 0]])(x)
    )
    return keras.layers.Reshape([n, x.shape[-1]])(x)


def causal_attention(filters: int, **options: Any) -> Mixer:
    def attend(x: K.Tensor) -> K.Tensor:
        x = keras.layers.Reshape([x.shape[1], 1, x.shape[2]])(x)
        x = CausalAttention(filters, **HEADS | options)(x)
        return keras.layers.Reshape([x.shape[1], x.shape[3]])(x)

    return attend


def lambda_layer(
    filters: int, position_stddev: float | None = None, **options: Any
) -> LambdaLayer:
    """Returns a lambda layer; `position_stddev` is that of the initial position embeddings."""
    if position_stddev is not None:
        options["embeddings_initializer"] = compat.RandomNormal(stddev=position_stddev)
    return LambdaLayer(filters, **HEADS | {"scope": SCOPE} | options)


def causal_lambda_layer(filters: int, **options: Any) -> Mixer:
    return lambda_layer(filters, causal=True, **options)


def _attention(kind: type[keras.layers.Layer], **defaults: Any) -> Callable[..., Mixer]:
    return lambda filters, **options: kind(filters, **HEADS | defaults | options)


OPERATORS = {
    "convolution": Operator("convolution 3x3", convolution, causal_convolution),
    "depthwise": Operator("depthwise 7x7", depthwise, causal_depthwise),
    "squeeze_excite": Operator("convolution and SE", squeeze_excite),
    "local_attention": Operator(
        "local attention 7x7", _attention(LocalAttention, scope=SCOPE)
    ),
    "halo_attention": Operator(
        "halo attention", _attention(HaloAttention, block_size=4, halo_size=2)
    ),
    "global_attention": Operator(
        "global attention", _attention(GlobalAttention), causal_attention
    ),
    "linear_attention": Operator("linear attention", _attention(LinearAttention)),
    "lambda_content": Operator(
        "lambda, content",
        partial(lambda_layer, position=None),
        partial(causal_lambda_layer, position=None),
    ),
    "lambda_position": Operator(
        "lambda, position",
        partial(lambda_layer, content=False),
        partial(causal_lambda_layer, content=False),
    ),
    "lambda_both": Operator("lambda, both", lambda_layer, causal_lambda_layer),
}
