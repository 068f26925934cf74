# SPDX-License-Identifier: Apache-2.0
"""A detector's training step on two cores of a TPU."""

import pytest
from processes import result_of


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.tpu
def test_synchronized_normalization_compiles_for_two_cores():
    """29 normalizations add up three numbers each, and one call adds up 111 gradients.

    28 of them add up two gradients as well.
    """
    found = result_of("detector_on_two_tpu_cores.py")
    assert found["calls"] == 3 * 29 + 1
    assert found["lowered"] == 3 * 29 + 111 + 2 * 28
    assert found["compiled"] > 0
