# SPDX-License-Identifier: Apache-2.0
"""Checks a step in a process of its own, which ends with it.

The TPU compiler takes gigabytes, writes to stderr, and ends its process where it finds a fault of its own.
"""

import concurrent.futures
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from lambdanet.training.tpu import chips, compiler
from lambdanet.training.tpu.cache import Cache
from lambdanet.training.tpu.check import DoesNotCompile
from lambdanet.training.tpu.report import Report
from lambdanet.training.tpu.steps import Step


def check(build: Callable[[], Step], topology: str, cache: Cache | None = None) -> Report:
    """Builds a step and compiles it for one core of a TPU.

    Args:
      build: returns the step; it is pickled, so a `functools.partial` of a function of a module.
      topology: one of `chips.TOPOLOGIES`.
      cache: keeps what the compiler answers; None: nothing is kept.

    Raises:
      DoesNotFit: it needs more memory than a core has.
      DoesNotCompile: the compiler refuses it otherwise, or ended without an answer.
      InputError: whatever `build` refuses, unknown topology, or jax and libtpu are not as they should be.
    """
    chips.chip_of(topology)  # before anything takes time
    compiler.versions()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with concurrent.futures.ProcessPoolExecutor(1, context, _quiet, (str(log),)) as pool:
            try:
                return pool.submit(_check, build, topology, cache).result()
            except BrokenProcessPool:
                told = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                last = told[-1][:500] if told else "none"
                raise DoesNotCompile(f"the TPU compiler died without an answer; last words: {last}") from None


def _quiet(log: str) -> None:
    """Sends what this process writes to stderr, its libraries included, to a file."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)


def _check(build: Callable[[], Step], topology: str, cache: Cache | None) -> Report:
    from lambdanet import device
    from lambdanet.training.tpu import check as checks

    with device.assume("TPU"):
        step = build()
    return checks.check(step, topology, cache)
