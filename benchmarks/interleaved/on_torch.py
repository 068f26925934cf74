# SPDX-License-Identifier: Apache-2.0
"""Runs contenders on PyTorch, on its GPU if it has one."""

import os
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.interleaved import memory
from benchmarks.interleaved.results import num_cores
from lambdanet.core.freed_memory import keep_memory


def start() -> dict[str, str]:
    """Returns the version of PyTorch, and its device.

    It keeps the memory of freed arrays, with which PyTorch is faster, but where memory is measured. On a GPU,
    products of float32 are in TF32, as on JAX and TensorFlow.
    """
    if not memory.ENVIRONMENT.items() <= os.environ.items():
        keep_memory()
    torch.set_num_threads(num_cores())
    name = "CPU"
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        name = torch.cuda.get_device_name()
    return {"library": f"torch {torch.__version__}", "device": name}


def device() -> torch.device:
    """Returns the device; in a `with`, it is where tensors are made."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait_after(run: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that runs another, and waits until the device is done."""

    def run_and_wait() -> Any:
        outputs = run()
        torch.cuda.synchronize()
        return outputs

    return run_and_wait if torch.cuda.is_available() else run
