# SPDX-License-Identifier: Apache-2.0
"""The contenders of the layer benchmark from other libraries, which may be missing.

Each is the library's own layer, in the library's data layout, on the CPU.
"""

import importlib.metadata
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

from lambdanet.training.benchmark.cases import (
    ATTENTION_HEADS,
    HALO,
    HALO_BLOCK,
    HEADS,
    KEY_DIM,
    PEER_PACKAGES,
    Case,
)

Run = Callable[[], object]


def start(name: str, threads: int) -> dict[str, str]:
    """Imports a peer's library, limits it to `threads`, and returns its version and device.

    Raises:
      ModuleNotFoundError: the library is not installed.
    """
    about = _IMPORTS[name](threads)
    versions = [f"{package} {importlib.metadata.version(package)}" for package in PEER_PACKAGES[name]]
    return {"device": "CPU", **about, "library": ", ".join(versions)}


def _import_lucidrains(threads: int) -> dict[str, str]:
    import lambda_networks  # noqa: F401
    import torch

    torch.set_num_threads(threads)
    return {}


def _import_timm(threads: int) -> dict[str, str]:
    import torch

    from lambdanet.models.weights.tensor_files import import_timm

    import_timm()

    torch.set_num_threads(threads)
    return {}


def _import_kecam(threads: int) -> dict[str, str]:
    import keras_cv_attention_models.halonet.halonet  # noqa: F401  (first: it selects the Keras version)

    from lambdanet.training.benchmark import contenders

    return contenders.start("peer/kecam_halo", threads)


def _lucidrains(case: Case) -> Run:
    from lambda_networks import LambdaLayer

    if case.scope is None and case.height != case.width:
        raise ValueError("global scope needs square maps")
    size: dict[str, Any] = {"n": case.height} if case.scope is None else {"r": case.scope}
    return _torch_runner(LambdaLayer(case.channels, dim_k=KEY_DIM, heads=HEADS, **size), case)


def _timm(case: Case) -> Run:
    from timm.layers.lambda_layer import LambdaLayer

    size = (case.height, case.width)
    layer = LambdaLayer(case.channels, feat_size=size, num_heads=HEADS, dim_head=KEY_DIM, r=case.scope)
    return _torch_runner(layer, case)


def _torch_runner(layer: Any, case: Case) -> Run:
    """Returns a function that calls a PyTorch layer, or computes the gradients of its input and weights."""
    import torch

    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    layer = layer.to(dtype).train(case.backward)
    shape = [case.batch, case.channels, case.height, case.width]
    inputs = torch.randn(shape).to(dtype).requires_grad_(case.backward)
    output_gradient = torch.randn(shape).to(dtype)
    variables = [inputs, *layer.parameters()]

    def forward():
        with torch.inference_mode():
            layer(inputs)

    def gradients():
        torch.autograd.grad(layer(inputs), variables, output_gradient)

    return gradients if case.backward else forward


def _kecam_halo(case: Case) -> Run:
    from lambdanet.training.benchmark import contenders

    return contenders.run_layer(_create_kecam_halo, case)


def _create_kecam_halo(case: Case, filters: int, dtype: str) -> Any:
    """Returns kecam's halo attention, without an output projection, like ours.

    It accepts maps of whole blocks only, so other maps are padded and the output is cropped. Its softmax has
    six axes, which TensorFlow with oneDNN rejects. oneDNN stays on, since it makes the rest up to twice as
    fast, and the softmax gets a tensor with fewer axes.
    """
    import keras
    import tensorflow as tf
    from keras_cv_attention_models.halonet import halonet

    class Softmax(keras.layers.Softmax):
        def call(self, x):
            return tf.reshape(super().call(tf.reshape(x, [-1, *x.shape[-2:]])), tf.shape(x))

    keras.mixed_precision.set_global_policy(dtype)
    layers = types.SimpleNamespace(**{**vars(halonet.layers), "Softmax": Softmax})
    missing = [(0, -side % HALO_BLOCK) for side in (case.height, case.width)]
    inputs = keras.Input([case.height, case.width, case.channels])
    x = keras.layers.ZeroPadding2D(missing)(inputs) if any(map(any, missing)) else inputs
    arguments = {"num_heads": ATTENTION_HEADS, "block_size": HALO_BLOCK, "halo_size": HALO}
    with mock.patch.object(halonet, "layers", layers):
        x = halonet.halo_attention(x, out_shape=filters, out_weight=False, **arguments)
    x = keras.layers.Cropping2D(missing)(x) if any(map(any, missing)) else x
    return keras.Model(inputs, x)


_IMPORTS = {
    "peer/lucidrains": _import_lucidrains,
    "peer/timm": _import_timm,
    "peer/kecam_halo": _import_kecam,
}

# See `contenders.CONTENDERS`.
CONTENDERS: dict[str, Callable[[Case], Run]] = {
    "peer/lucidrains": _lucidrains,
    "peer/timm": _timm,
    "peer/kecam_halo": _kecam_halo,
}
