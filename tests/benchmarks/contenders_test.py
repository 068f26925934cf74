# SPDX-License-Identifier: Apache-2.0
"""Contenders that are forms of one function compute the same, on the backend of this process."""

import dataclasses

import keras
import numpy as np
import pytest
from helpers import relative_error

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["position/query_first", "layer/auto", "attention/halo"]
)
def test_contenders_run_in_half_precision(name):
    half = dataclasses.replace(FORWARD, dtype="bfloat16")
    found, *_ = arrays(name, half)
    assert found.dtype == "bfloat16"
    # Roundings of inputs, weights and of some products, each of at most 1 / 256.
    assert relative_error(found, arrays(name, FORWARD)[0]) < 10 / 256
