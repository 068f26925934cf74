# SPDX-License-Identifier: Apache-2.0
"""Contenders that are forms of one function compute the same, on the backend of this process."""

import keras
import numpy as np
import pytest

from benchmarks.interleaved import contenders
from benchmarks.interleaved.cases import cases

FORWARD, BOTH = cases(["8x8x16x1"], ["5"], ["forward", "both"], "float32")


def arrays(name, case):
    """Returns the outputs of a contender, or its gradients."""
    keras.utils.set_random_seed(0)
    found = keras.tree.flatten(contenders.build(name, case)())
    return [np.array(array) for array in found if array is not None]


@pytest.mark.slow
@pytest.mark.parametrize("case", [FORWARD, BOTH], ids=["forward", "both"])
@pytest.mark.parametrize("forms", [contenders.FORMS, ("layer/einsum", "layer/auto")])
def test_forms_compute_the_same(forms, case):
    reference, *others = forms
    expected = arrays(reference, case)
    for name in others:
        for array, other in zip(arrays(name, case), expected, strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-4, err_msg=name)
