# SPDX-License-Identifier: Apache-2.0
"""The contenders of the layer benchmark from this library."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.interleaved.cases import (
    ATTENTION_HEADS,
    HALO,
    HALO_BLOCK,
    HEADS,
    KEY_DIM,
    Case,
)
from lambdanet import backend as K
from lambdanet.backend import Tensor, keras
from lambdanet.core import which_keras
from lambdanet.layers.attention import AxialAttention, GlobalAttention, LinearAttention
from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.ops import reference
from lambdanet.ops.kernels import IMPLEMENTATIONS, apply_position_lambdas

which_keras.check_backend("benchmark", ("tensorflow", "jax", "torch"))

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
# layer/auto, with a padding mask that hides the last quarter of the positions.
PADDED = "layer/padding"
CONTENDERS = (*FORMS, "layer/einsum", "layer/auto", PADDED, *ATTENTION)

Run = Callable[[], object]


def start(name: str) -> dict[str, str]:
    """Returns the version of the backend, and its device."""
    if K.ENGINE == "jax":
        import jax

        tf.config.set_visible_devices([], "GPU")
        device = jax.devices()[0]
        kind = "CPU" if device.platform == "cpu" else device.device_kind
        return {"library": f"jax {jax.__version__}", "device": kind}
    if K.ENGINE == "torch":
        from benchmarks.interleaved import on_torch

        return on_torch.start()
    gpus = tf.config.list_physical_devices("GPU")
    device = (
        tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
        if gpus
        else "CPU"
    )
    return {"library": f"tensorflow {tf.__version__}", "device": device}


def build(name: str, case: Case) -> Run:
    """Builds one of `CONTENDERS` for a case and returns a function that runs it once."""
    form = name.partition("/")[2]
    if name in FORMS:
        by_name = partial(
            apply_position_lambdas, implementation=form, training=case.backward
        )
        return run_position_lambdas(figure_3 if name == FIGURE_3 else by_name, case)
    if name in ATTENTION:
        return run_layer(
            lambda case, **options: ATTENTION[name](
                num_heads=ATTENTION_HEADS, **options
            ),
            case,
        )
    options: dict[str, Any] = {
        "num_heads": HEADS,
        "key_dim": KEY_DIM,
        "implementation": form,
    }
    call_options = {}
    if name == PADDED:
        options["implementation"] = "auto"
        positions = np.arange(case.height * case.width)
        visible = positions < len(positions) * 3 // 4
        call_options["padding_mask"] = np.tile(visible, [case.batch, 1])
    return run_layer(
        lambda case, **more: LambdaLayer(scope=case.scope, **options, **more),
        case,
        **call_options,
    )


def figure_3(queries: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """Applies the position lambdas by the pseudo-code of Figure 3, with the embeddings of all pairs.

    Queries [b, height, width, h, k], values [b, height, width, v] and a table [r, r, k] give outputs
    [b, height, width, h, v].
    """
    b, height, width, h, k = queries.shape
    v = values.shape[-1]
    size = [height, width]
    # [n, m, k, 1]
    embeddings = reference.gather_embeddings(table[..., K.newaxis], size, size)
    outputs = reference.apply_position_lambdas(
        K.reshape(queries, [b, -1, h, k]), K.reshape(values, [b, -1, v, 1]), embeddings
    )
    return K.reshape(outputs, [b, height, width, h, v])


def run_position_lambdas(apply: Callable[..., Tensor], case: Case) -> Run:
    """Returns a function that applies position lambdas to random queries, values and table once."""
    b = case.batch
    height = case.height
    width = case.width
    v = case.channels // HEADS
    lengths = [case.scope] * 2 if case.scope else [2 * height - 1, 2 * width - 1]
    shapes = (
        [b, height, width, HEADS, KEY_DIM],
        [b, height, width, v],
        [*lengths, KEY_DIM],
    )
    inputs = [random_tensor(shape, case, seed) for seed, shape in enumerate(shapes)]
    return run_function(apply, inputs, [b, height, width, HEADS, v], case)


def run_layer(
    create: Callable[..., keras.layers.Layer], case: Case, **call_options: Any
) -> Run:
    """Returns a function that runs a layer once.

    Args:
      create: a case, `filters` and `dtype` -> the layer.
      case: the case.
      **call_options: arguments of the call of a lambda layer.
    """
    layer = create(case, filters=case.channels, dtype=policy(case.dtype))
    shape = [case.batch, case.height, case.width, case.channels]
    layer.build(shape)
    apply = (
        partial(layer, training=case.backward, **call_options)
        if isinstance(layer, LambdaLayer)
        else layer
    )
    return run_function(apply, [random_tensor(shape, case, 0)], shape, case, layer)


def policy(dtype: str) -> str:
    """Returns the precision policy of layers that compute in a dtype."""
    return dtype if dtype == "float32" else f"mixed_{dtype}"


def run_function(
    apply: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    output_shape: Sequence[int],
    case: Case,
    layer: keras.layers.Layer | None = None,
) -> Run:
    """Returns a function that computes the outputs or, for the backward pass, all gradients."""
    if not case.backward:
        return compile_runner(apply, inputs, layer)
    weights = layer.trainable_variables if layer else []
    differentiate = {
        "jax": _jax_gradients,
        "tensorflow": _tensorflow_gradients,
        "torch": _torch_gradients,
    }[K.ENGINE]
    gradients = differentiate(apply, weights)
    return compile_runner(
        gradients, [random_tensor(output_shape, case, 3), *inputs], layer
    )


def _tensorflow_gradients(
    apply: Callable[..., Tensor], weights: Sequence[Any]
) -> Callable[..., Any]:
    def gradients(output_gradient: Tensor, *inputs: Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = apply(*inputs)
        return tape.gradient(outputs, [*inputs, *weights], output_gradient)

    return gradients


def _jax_gradients(
    apply: Callable[..., Tensor], weights: Sequence[Any]
) -> Callable[..., Any]:
    import jax

    def gradients(output_gradient: Tensor, *inputs: Tensor) -> list[Tensor]:
        values = [K.convert_to_tensor(weight) for weight in weights]
        by_weights, *by_inputs = jax.vjp(_of_values(weights, apply), values, *inputs)[
            1
        ](output_gradient)
        return [*by_inputs, *by_weights]

    return gradients


def _torch_gradients(
    apply: Callable[..., Tensor], weights: Sequence[Any]
) -> Callable[..., Any]:
    import torch

    @torch.enable_grad()
    def gradients(output_gradient: Tensor, *inputs: Tensor) -> Any:
        inputs = tuple(x.detach().requires_grad_() for x in inputs)
        variables = [*inputs, *(weight.value for weight in weights)]
        return torch.autograd.grad(apply(*inputs), variables, output_gradient)

    return gradients


def _of_values(
    variables: Sequence[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns the function with the values of variables as its first argument."""

    def call(values: Sequence[Any], *arguments: Any) -> Any:
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return function(*arguments)

    return call


def compile_runner(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    layer: keras.layers.Layer | None = None,
) -> Run:
    """Returns a function that runs a compiled function of tensors once and waits for the result.

    On JAX, the function leaves variables as they are, and the weights of the layer in it are arguments of the
    compiled function, not constants. On torch, nothing is compiled, and gradients are off.
    """
    if K.ENGINE == "jax":
        import jax

        variables = layer.variables if layer else []
        jitted = jax.jit(_of_values(variables, function))
        values = [variable.value for variable in variables]
        return lambda: jax.block_until_ready(jitted(values, *arguments))
    if K.ENGINE == "torch":
        import torch

        from benchmarks.interleaved import on_torch

        return on_torch.wait_after(torch.no_grad()(partial(function, *arguments)))
    compiled = tf.function(function, autograph=False)

    def run() -> Any:
        outputs = compiled(*arguments)
        tf.test.experimental.sync_devices()
        return outputs

    return run


def random_tensor(shape: Sequence[int], case: Case, seed: int) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return K.cast(K.convert_to_tensor(values), case.dtype)
