# SPDX-License-Identifier: Apache-2.0
"""Backbones and detectors compute what they did when backbones were models of tf_keras.

`before_one_keras.npz` was written by the same program at the tag `last-with-both-kerases`.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers import program
from samples import load

BEFORE = load(Path(__file__).with_name("before_one_keras.npz"))
# Of the largest number of an array. Another processor or number of threads adds in another order, which
# gradients amplify; in half precision they are not compared. On one machine all are equal to the last bit,
# but for normalizations that are fused now: to 1e-6, in half precision to 0.02.
TOLERANCES = {"float32": 1e-3, "mixed_bfloat16": 0.2}
AMPLIFIED, AMPLIFIED_TOLERANCE = ("gradient/", "updated/"), 0.1
# Keras 3 averages the biased variance of a batch, the fused kernel in tf_keras n / (n - 1) times as much.
VARIANCE_TOLERANCE = 0.06
# The largest gradient of a bias before a normalization is rounding alone.
SMALLEST = 1e-4


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    """What they compute now, in a process with two devices."""
    file = tmp_path_factory.mktemp("now") / "now.npz"
    done = subprocess.run(**program("record_detectors.py", file), capture_output=True)
    assert done.returncode == 0, done.stderr
    return load(file)


def keys(ending: str) -> list[str]:
    return [name for name in BEFORE if name.endswith(ending)]


def test_everything_is_compared(now):
    assert now.keys() == BEFORE.keys() and len(BEFORE) > 3000


@pytest.mark.parametrize(
    "part", sorted({name.rpartition("/variables")[0] for name in keys("/variables")})
)
def test_arrays_equal(part, now):
    """Outputs in both modes, losses, gradients, and the weights and averages after a step."""
    tolerance = TOLERANCES["mixed_bfloat16" if "bfloat16" in part else "float32"]
    names = [
        name
        for name in BEFORE
        if name.startswith(f"{part}/") and not name.endswith("variables")
    ]
    assert names or "two_devices" in part
    for name in names:
        limit = tolerance
        if any(kind in name for kind in AMPLIFIED):
            if "bfloat16" in part:
                continue
            limit = (
                VARIANCE_TOLERANCE if "moving_variance" in name else AMPLIFIED_TOLERANCE
            )
        expected = BEFORE[name]
        scale = max(expected[0], SMALLEST)
        np.testing.assert_allclose(
            now[name] / scale, expected / scale, rtol=0, atol=limit, err_msg=name
        )


@pytest.mark.parametrize("name", keys("/variables"))
def test_tables_of_variables_are_equal(name, now):
    """Names, shapes, types, trainable, synchronization and aggregation, also within a strategy.

    tf_keras has the averages of a layer last, and calls the kernel of a depthwise convolution otherwise.
    """
    expected = [
        row.replace("/depthwise_kernel:0", "/kernel:0") for row in BEFORE[name].tolist()
    ]
    got = [
        row.replace("/depthwise_kernel:0", "/kernel:0") for row in now[name].tolist()
    ]
    assert sorted(got) == sorted(expected)


@pytest.mark.slow
@pytest.mark.tpu
def test_synchronized_normalization_compiles_for_two_cores():
    """The counts are those of tf_keras layers, at the tag last-with-both-kerases."""
    done = subprocess.run(
        **program("detector_on_two_tpu_cores.py"), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["calls"], found["lowered"]) == (154, 441)
    assert found["compiled"] > 0
