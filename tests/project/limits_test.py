# SPDX-License-Identifier: Apache-2.0
"""Code above its cap is a warning, and 2,000 tokens more are an error."""

import limits
import pytest


@pytest.mark.parametrize(
    ("count", "warned", "failed"),
    [(100, 0, 0), (101, 1, 0), (2_099, 1, 0), (2_101, 0, 1)],
)
def test_tokens_above_a_cap_warn_before_they_fail(count, warned, failed, capsys):
    problems = list(limits.compare_tokens("docs", count, 100))
    assert len(problems) == failed
    message = f"docs is {count - 100:,} tokens over its cap: delete code"
    assert all(problem.startswith(message) for problem in problems)
    assert capsys.readouterr().out.count(f"warning: {message}") == warned
