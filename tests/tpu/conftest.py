# SPDX-License-Identifier: Apache-2.0
"""A process with Keras on JAX, in which steps are built and compiled one after another."""

import concurrent.futures
import contextlib
import multiprocessing
import os
from unittest import mock

import pytest

from lambdanet.tpu_estimates import check

ENVIRONMENT = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
}


@pytest.fixture(scope="module")
def jax_process(tmp_path_factory):
    """An executor whose process starts as that of `check_in_process` does, with two devices."""
    log = str(tmp_path_factory.mktemp("jax") / "stderr")
    context = multiprocessing.get_context("spawn")
    arguments = (1, context, check._start_worker, (log,))
    with concurrent.futures.ProcessPoolExecutor(*arguments) as pool:
        with mock.patch.dict(os.environ, ENVIRONMENT):
            pool.submit(os.getpid).result()  # it starts
        yield pool


@pytest.fixture
def steps_in_jax_process(jax_process, monkeypatch):
    """Makes `check_in_process` compile in that process, in place of a new one for each step."""
    futures = mock.Mock(
        ProcessPoolExecutor=lambda *_: contextlib.nullcontext(jax_process)
    )
    monkeypatch.setattr(check, "concurrent", mock.Mock(futures=futures))
