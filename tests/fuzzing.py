# SPDX-License-Identifier: Apache-2.0
"""The number of cases of fuzz tests and tests of variants, which LAMBDANET_FUZZ multiplies."""

import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K


def rounds(default: int) -> int:
    """Returns how many cases a fuzz test tries: `default` times LAMBDANET_FUZZ (1 if unset), at least 1."""
    return max(1, round(default * _factor()))


def pairwise(
    first: Sequence[Any], second: Sequence[Any], third: Sequence[Any]
) -> list[tuple[Any, Any, Any]]:
    """Returns cases in which all values of any two of three factors meet; all cases in `make fuzz`.

    All pairs of the first two, with the values of the third in turn: (0, 0, 0), (0, 1, 1), (1, 0, 1),
    (1, 1, 0) for three factors of two values. The third must have the fewest.
    """
    assert len(third) <= min(len(first), len(second))
    if _factor() > 1:
        return list(itertools.product(first, second, third))
    return [
        (a, b, third[(i + j) % len(third)])
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]


def computing_in(dtype: str) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which layers of this type compute in it: JAX enables float64."""
    if K.ENGINE == "jax" and dtype == "float64":
        import jax

        return jax.enable_x64(True)
    return contextlib.nullcontext()


def _factor() -> float:
    return float(os.environ.get("LAMBDANET_FUZZ", "1"))
