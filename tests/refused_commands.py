# SPDX-License-Identifier: Apache-2.0
"""Checks that a command refused its arguments in one line."""

import re

import pytest


def assert_refused(
    status: int, message: str, capture: pytest.CaptureFixture[str]
) -> str:
    """Asserts that a command has printed an error of one line; returns its standard output.

    Args:
      status: the exit status of the command; must be 2.
      message: a pattern that is found in the error.
      capture: the fixture `capsys` or `capfd` of the test.
    """
    printed = capture.readouterr()
    assert status == 2
    assert re.search(message, printed.err), printed.err
    assert ": error: " in printed.err
    assert printed.err.count("\n") == 1
    return printed.out
