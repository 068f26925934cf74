# SPDX-License-Identifier: Apache-2.0
"""Checks a step in a new process.

The TPU compiler takes gigabytes of memory, writes to stderr, and aborts its process on internal errors.
"""

import concurrent.futures
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from lambdanet.backend import device
from lambdanet.tpu import chips, compiler
from lambdanet.tpu.check import DoesNotCompile, check_step
from lambdanet.tpu.compiler import Cache
from lambdanet.tpu.report import Report
from lambdanet.tpu.steps import TpuStep

KERAS_3_ON_JAX = {"LAMBDANET_KERAS": "keras", "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


def check_in_process(
    build: Callable[[], TpuStep],
    topology: str,
    cache: Cache | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Builds a step and compiles it for one core of a TPU.

    Args:
      build: returns the step; it must be picklable, such as a `functools.partial` of a module's function.
      topology: one of `chips.TOPOLOGIES`.
      cache: the cache of compilations; default: none.
      environment: variables of the process, such as `KERAS_3_ON_JAX`.

    Raises:
      DoesNotFit: the step needs more memory than a core has.
      DoesNotCompile: the compiler rejects the step for another reason, or aborts.
      InputError: `build` raises it, the topology is unknown, or jax and libtpu are missing or have other
        versions.
    """
    chips.chip_of(topology)  # fail early
    compiler.versions()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stderr"
        with concurrent.futures.ProcessPoolExecutor(1, context, _start, (str(log),)) as pool:
            try:
                with mock.patch.dict(os.environ, environment):  # the process starts with these
                    return pool.submit(_check, build, topology, cache).result()
            except BrokenProcessPool:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                last = lines[-1][:500] if lines else "empty"
                raise DoesNotCompile(f"the TPU compiler aborted; the end of its log: {last}") from None


def _start(log: str) -> None:
    """Redirects the stderr of this process and its libraries to a file, and ends it with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)


def _check(build: Callable[[], TpuStep], topology: str, cache: Cache | None) -> Report:
    with device.assume("TPU"):
        step = build()
    return check_step(step, topology, cache)
