# SPDX-License-Identifier: Apache-2.0
"""Tests of the layer benchmark: failing processes, peers and memory."""

import contextlib

import pytest

from benchmarks.interleaved import memory
from benchmarks.interleaved.cases import PEER_PACKAGES, Case, cases
from benchmarks.interleaved.contender_process import (
    ContenderFailed,
    ContenderProcess,
)

SMALL = Case(4, 6, 16, 2, 3, backward=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("position/einsum", "tensorflow"),
        pytest.param("layer/auto on jax", "jax", marks=pytest.mark.weekly),
        pytest.param("layer/auto on torch", "torch", marks=pytest.mark.weekly),
    ],
)
def test_process_survives_failing_case_and_ends_at_limit(name, library):
    worker = ContenderProcess(name, {})
    with contextlib.closing(worker):
        assert worker.about()["library"].startswith(f"{library} ")
        with pytest.raises(ContenderFailed, match="Error"):
            worker.request("build", 600, case={**vars(SMALL), "dtype": "complex"})
        assert worker.is_alive()
        assert worker.request("build", 600, case=vars(SMALL))["seconds"] > 0
        assert worker.request("time", 600, calls=3, warm=True)["seconds"] > 0
        with pytest.raises(ContenderFailed, match="stopped after 0 s"):
            worker.request("time", 0.01, calls=10**9, warm=False)
        assert not worker.is_alive()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "peer/lucidrains",
        pytest.param("peer/timm", marks=pytest.mark.weekly),
    ],
)
def test_peer_runs_or_names_the_missing_package(name):
    worker = ContenderProcess(name, memory.ENVIRONMENT)
    try:
        about = worker.about()
    except ContenderFailed as failure:
        assert f"pip install {' '.join(PEER_PACKAGES[name])}" in str(failure)
        pytest.skip(f"{name} is not installed")
    else:
        assert PEER_PACKAGES[name][-1] in about["library"]
        # Arrays of more than 64 KiB, which are given back: at least outputs, queries, values and gradients.
        (case,) = cases(["32x32x64x1"], ["3"], ["both"], "float32")
        map_bytes = 32 * 32 * 64 * 4
        assert worker.request("build", 600, case=vars(case))["seconds"] > 0
        assert worker.request("time", 600, calls=3, warm=True)["seconds"] > 0
        assert worker.request("memory", 600, calls=1)["bytes"] > 4 * map_bytes
    finally:
        worker.close()
