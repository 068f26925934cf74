# SPDX-License-Identifier: Apache-2.0
"""Checks that an error is one line; imports no backend."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lambdanet.core.errors import InputError


@contextlib.contextmanager
def refused(
    message: str, error: type[Exception] = InputError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Asserts that the code within ends with an error of one line, in which a pattern is found."""
    with pytest.raises(error, match=message) as caught:
        yield caught
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def unchanged(model: Any, message: str) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Asserts as `refused`, and that a layer or model has the weights that it had before."""
    before = model.get_weights()
    with refused(message) as caught:
        yield caught
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
