# SPDX-License-Identifier: Apache-2.0
"""The contenders from other libraries, which may be missing: layers, and timm's networks.

Each is the library's own, of PyTorch and in its data layout, on its GPU if it has one.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

from benchmarks.interleaved import cases
from benchmarks.interleaved.cases import Case, ModelCase

NUM_CLASSES = 1000

Run = Callable[[], object]


def start(name: str) -> dict[str, str]:
    """Imports the library of a contender, and returns its version and device."""
    from benchmarks.interleaved import on_torch

    if name == "peer/lucidrains":
        import lambda_networks  # noqa: F401
    else:
        from lambdanet.models.weights.tensor_files import import_timm

        import_timm()
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in cases.packages_of(name)
    ]
    return {**on_torch.start(), "library": ", ".join(versions)}


def build(name: str, case: Case | ModelCase) -> Run:
    """Builds a contender and returns a function that runs it once."""
    from benchmarks.interleaved import on_torch

    with on_torch.device():
        if isinstance(case, ModelCase):
            prefix, _, network = name.partition("/")
            run = _run_network(network, case, compiled=prefix == "timm_compiled")
        else:
            create = _lucidrains if name == "peer/lucidrains" else _timm
            run = _run_torch_layer(create(case), case)
    return on_torch.wait_after(run)


def _lucidrains(case: Case) -> Any:
    from lambda_networks import LambdaLayer

    if case.scope is None and case.height != case.width:
        raise ValueError("global scope needs square maps")
    size: dict[str, Any] = (
        {"n": case.height} if case.scope is None else {"r": case.scope}
    )
    return LambdaLayer(case.channels, dim_k=cases.KEY_DIM, heads=cases.HEADS, **size)


def _timm(case: Case) -> Any:
    from timm.layers.lambda_layer import LambdaLayer

    size, heads = (case.height, case.width), cases.HEADS
    return LambdaLayer(
        case.channels,
        feat_size=size,
        num_heads=heads,
        dim_head=cases.KEY_DIM,
        r=case.scope,
    )


def _run_torch_layer(layer: Any, case: Case) -> Run:
    """Returns a function that calls a PyTorch layer, or computes the gradients of its input and weights."""
    import torch

    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    layer = layer.to(dtype).train(case.backward)
    shape = [case.batch, case.channels, case.height, case.width]
    inputs = torch.randn(shape).to(dtype).requires_grad_(case.backward)
    output_gradient = torch.randn(shape).to(dtype)
    variables = [inputs, *layer.parameters()]
    if case.backward:
        return lambda: torch.autograd.grad(layer(inputs), variables, output_gradient)
    return torch.inference_mode()(functools.partial(layer, inputs))


def _run_network(name: str, case: ModelCase, compiled: bool) -> Run:
    """Returns a function that runs a network of timm, or makes a training step."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=NUM_CLASSES).train(case.backward)
    images = torch.randn([case.batch, *model.default_cfg["input_size"]])
    labels = torch.randint(NUM_CLASSES, [case.batch])
    compute = torch.compile(model) if compiled else model
    dtype = getattr(torch, case.dtype)
    precision = functools.partial(
        torch.autocast, images.device.type, dtype, enabled=dtype != torch.float32
    )
    optimizer = torch.optim.SGD(model.parameters(), cases.LEARNING_RATE, cases.MOMENTUM)

    def infer() -> None:
        with torch.inference_mode(), precision():
            compute(images)

    def train() -> None:
        optimizer.zero_grad()
        with precision():
            loss = torch.nn.functional.cross_entropy(compute(images), labels)
        loss.backward()
        optimizer.step()

    return train if case.backward else infer
