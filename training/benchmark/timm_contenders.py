# SPDX-License-Identifier: Apache-2.0
"""The contenders of the model benchmark from timm: networks in PyTorch, eager or compiled."""

import functools
from collections.abc import Callable
from typing import Any

from lambdanet.training.benchmark import peers
from lambdanet.training.benchmark.cases import LEARNING_RATE, MOMENTUM, ModelCase

__all__ = ["CASE", "CONTENDERS", "start"]

NUM_CLASSES = 1000


def start(name: str, threads: int) -> dict[str, str]:
    """Imports timm as `peers.start` does."""
    return peers.start("peer/timm", threads)


def _run(form: Callable[[Any], Any], name: str, case: ModelCase) -> Callable[[], object]:
    """Builds a network and returns a function that runs it once; `form` compiles it or returns it."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=NUM_CLASSES).train(case.backward)
    images = torch.randn([case.batch, *model.default_cfg["input_size"]])
    compute = form(model)
    dtype = getattr(torch, case.dtype)
    precision = functools.partial(torch.autocast, "cpu", dtype, enabled=dtype != torch.float32)

    def infer() -> None:
        with torch.inference_mode(), precision():
            compute(images)

    labels = torch.randint(NUM_CLASSES, [case.batch])
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)

    def train() -> None:
        optimizer.zero_grad()
        with precision():
            loss = torch.nn.functional.cross_entropy(compute(images), labels)
        loss.backward()
        optimizer.step()

    return train if case.backward else infer


def _compile(model: Any) -> Any:
    import torch

    return torch.compile(model)


FORMS = {"timm": lambda model: model, "timm_compiled": _compile}


class _Contenders:
    """Maps the name of a contender to the function that builds it for a case."""

    def __getitem__(self, name: str) -> Callable[[ModelCase], Callable[[], object]]:
        prefix, _, network = name.partition("/")
        return functools.partial(_run, FORMS[prefix], network)


CASE = ModelCase
CONTENDERS = _Contenders()
