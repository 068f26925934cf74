# SPDX-License-Identifier: Apache-2.0
"""Checks that an error is one line; imports no backend."""

import contextlib
from collections.abc import Iterator

import pytest

from lambdanet.errors import InputError


@contextlib.contextmanager
def refused(
    message: str, error: type[Exception] = InputError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Asserts that the code within ends with an error of one line, in which a pattern is found."""
    with pytest.raises(error, match=message) as caught:
        yield caught
    assert "\n" not in str(caught.value)
