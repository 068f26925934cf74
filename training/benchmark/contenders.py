# SPDX-License-Identifier: Apache-2.0
"""The contenders of the layer benchmark from this library."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.ops import reference
from lambdanet.ops.position_lambdas import IMPLEMENTATIONS, apply_position_lambdas
from lambdanet.training.benchmark.cases import ATTENTION_HEADS, HALO, HALO_BLOCK, HEADS, KEY_DIM, Case

which_keras.take("keras", "benchmark", ("tensorflow",))

# Each has its own scope: 7x7 positions (local), blocks of 8x8 with halos of 3 (halo), or the whole map.
ATTENTION: dict[str, Callable[..., keras.layers.Layer]] = {
    "attention/global": GlobalAttention,
    "attention/axial": AxialAttention,
    "attention/linear": LinearAttention,
    "attention/local": LocalAttention,
    "attention/halo": partial(HaloAttention, block_size=HALO_BLOCK, halo_size=HALO),
}
FIGURE_3 = "position/figure_3"
FORMS = (FIGURE_3, *(f"position/{name}" for name in (*IMPLEMENTATIONS, "auto")))
CONTENDERS = (*FORMS, "layer/einsum", "layer/auto", *ATTENTION)

Run = Callable[[], object]


def start(name: str, threads: int) -> dict[str, str]:
    """Limits TensorFlow to `threads` and returns its version and device."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    gpus = tf.config.list_physical_devices("GPU")
    device = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"
    return {"library": f"tensorflow {tf.__version__}", "device": device}


def build(name: str, case: Case) -> Run:
    """Builds one of `CONTENDERS` for a case and returns a function that runs it once."""
    form = name.partition("/")[2]
    if name in FORMS:
        by_name = partial(apply_position_lambdas, implementation=form, training=case.backward)
        return _run_position_lambdas(figure_3 if name == FIGURE_3 else by_name, case)
    if name in ATTENTION:
        return run_layer(lambda case, **options: ATTENTION[name](num_heads=ATTENTION_HEADS, **options), case)
    options: dict[str, Any] = {"num_heads": HEADS, "key_dim": KEY_DIM, "implementation": form}
    return run_layer(lambda case, **more: LambdaLayer(scope=case.scope, **options, **more), case)


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


def _run_position_lambdas(apply: Callable[..., tf.Tensor], case: Case) -> Run:
    """The position lambdas of random queries and values."""
    b, height, width, v = case.batch, case.height, case.width, case.channels // HEADS
    lengths = [case.scope] * 2 if case.scope else [2 * height - 1, 2 * width - 1]
    shapes = [b, height, width, HEADS, KEY_DIM], [b, height, width, v], [*lengths, KEY_DIM]
    inputs = [_random(shape, case, seed) for seed, shape in enumerate(shapes)]
    return _run(apply, inputs, lambda: [], [b, height, width, HEADS, v], case)


def run_layer(create: Callable[..., keras.layers.Layer], case: Case) -> Run:
    """Returns a function that runs a layer with the same number of input and output channels once.

    Args:
      create: returns the layer for a case, `filters` and a `dtype` policy.
      case: the case.
    """
    layer = create(case, filters=case.channels, dtype=policy(case.dtype))
    shape = [case.batch, case.height, case.width, case.channels]
    apply = partial(layer, training=case.backward) if isinstance(layer, LambdaLayer) else layer
    return _run(apply, [_random(shape, case, 0)], lambda: layer.trainable_variables, shape, case)


def policy(dtype: str) -> str:
    """Returns the precision policy of layers that compute in a dtype."""
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def _run(
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
