# SPDX-License-Identifier: Apache-2.0
"""The contenders of the layer benchmark from this library."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.ops import reference
from lambdanet.ops.position_lambdas import IMPLEMENTATIONS, apply_position_lambdas
from lambdanet.training.benchmark.cases import ATTENTION_HEADS, HALO, HALO_BLOCK, HEADS, KEY_DIM, Case

Run = Callable[[], object]


def start(name: str, threads: int) -> dict[str, str]:
    """Limits TensorFlow to `threads` and returns its version and device."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    gpus = tf.config.list_physical_devices("GPU")
    device = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"
    return {"library": f"tensorflow {tf.__version__}", "device": device}


def figure_3(queries: tf.Tensor, values: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Applies the position lambdas by the pseudo-code of Figure 3, with the embeddings of all pairs.

    Args:
      queries: [b, height, width, h, k].
      values: [b, height, width, v].
      table: [r, r, k].

    Returns:
      [b, height, width, h, v].
    """
    b, height, width, h, k = queries.shape
    v, size = values.shape[-1], [height, width]
    embeddings = reference.gather_embeddings(table[..., tf.newaxis], size, size)  # [n, m, k, 1]
    outputs = reference.apply_position_lambdas(
        tf.reshape(queries, [b, -1, h, k]), tf.reshape(values, [b, -1, v, 1]), embeddings
    )
    return tf.reshape(outputs, [b, height, width, h, v])


def _position(apply: Callable[..., tf.Tensor], case: Case) -> Run:
    """The position lambdas of random queries and values."""
    b, height, width, v = case.batch, case.height, case.width, case.channels // HEADS
    lengths = [case.scope] * 2 if case.scope else [2 * height - 1, 2 * width - 1]
    inputs = [
        _random([b, height, width, HEADS, KEY_DIM], case, 0),
        _random([b, height, width, v], case, 1),
        _random([*lengths, KEY_DIM], case, 2),
    ]
    return _runner(apply, inputs, lambda: [], [b, height, width, HEADS, v], case)


def _named_position(name: str, case: Case) -> Run:
    """The position lambdas by `apply_position_lambdas`, in inference or in training."""
    return _position(partial(apply_position_lambdas, implementation=name, training=case.backward), case)


def run_layer(create: Callable[..., keras.layers.Layer], case: Case) -> Run:
    """Returns a function that runs a layer with the same number of input and output channels once.

    Args:
      create: returns the layer for a case, `filters` and a `dtype` policy.
      case: the case.
    """
    policy = case.dtype if case.dtype == "float32" else f"mixed_{case.dtype}"
    layer = create(case, filters=case.channels, dtype=policy)
    shape = [case.batch, case.height, case.width, case.channels]
    apply = partial(layer, training=case.backward) if isinstance(layer, LambdaLayer) else layer
    return _runner(apply, [_random(shape, case, 0)], lambda: layer.trainable_variables, shape, case)


def _runner(
    apply: Callable[..., tf.Tensor],
    inputs: Sequence[tf.Tensor],
    weights: Callable[[], Sequence[tf.Variable]],
    output_shape: Sequence[int],
    case: Case,
) -> Run:
    """Returns a function that computes the outputs or, for the backward pass, all gradients."""

    def gradients(output_gradient, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = apply(*inputs)
        return tape.gradient(outputs, [*inputs, *weights()], output_gradient)

    if not case.backward:
        return compile_runner(apply, inputs)
    return compile_runner(gradients, [_random(output_shape, case, 3), *inputs])


def compile_runner(function: Callable[..., Any], arguments: Sequence[tf.Tensor]) -> Run:
    """Returns a function that runs the graph of `function` once and waits for the result."""
    compiled = tf.function(function, autograph=False)

    def run():
        compiled(*arguments)
        tf.test.experimental.sync_devices()

    return run


def _random(shape: Sequence[int], case: Case, seed: int) -> tf.Tensor:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return tf.cast(values, case.dtype)


def _lambda_layer(implementation: str, case: Case, **arguments: Any) -> keras.layers.Layer:
    return LambdaLayer(
        num_heads=HEADS, key_dim=KEY_DIM, scope=case.scope, implementation=implementation, **arguments
    )


def _attention(kind: type[keras.layers.Layer], case: Case, **arguments: Any) -> keras.layers.Layer:
    return kind(num_heads=ATTENTION_HEADS, **arguments)


_halo_attention = partial(_attention, HaloAttention, block_size=HALO_BLOCK, halo_size=HALO)

# Name -> a function that builds the contender for a case and returns a function that runs it once. Attention
# layers have their own scope: 7x7 positions (local), blocks of 8x8 with halos of 3 (halo), or the whole map.
CONTENDERS: dict[str, Callable[[Case], Run]] = {
    "position/figure_3": partial(_position, figure_3),
    **{f"position/{name}": partial(_named_position, name) for name in (*IMPLEMENTATIONS, "auto")},
    **{f"layer/{name}": partial(run_layer, partial(_lambda_layer, name)) for name in ("einsum", "auto")},
    "attention/global": partial(run_layer, partial(_attention, GlobalAttention)),
    "attention/axial": partial(run_layer, partial(_attention, AxialAttention)),
    "attention/linear": partial(run_layer, partial(_attention, LinearAttention)),
    "attention/local": partial(run_layer, partial(_attention, LocalAttention)),
    "attention/halo": partial(run_layer, _halo_attention),
}
