# SPDX-License-Identifier: Apache-2.0
"""A detector's training step on two cores of a TPU."""

import json
import subprocess

import pytest
from helpers import program


@pytest.mark.slow
@pytest.mark.tpu
def test_synchronized_normalization_compiles_for_two_cores():
    """29 normalizations add up three numbers each, and one call adds up 111 gradients.

    28 of them add up two gradients as well.
    """
    done = subprocess.run(
        **program("detector_on_two_tpu_cores.py"), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["calls"] == 3 * 29 + 1
    assert found["lowered"] == 3 * 29 + 111 + 2 * 28
    assert found["compiled"] > 0
