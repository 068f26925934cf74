# SPDX-License-Identifier: Apache-2.0
"""Code above its cap is a warning, and 2,000 tokens more are an error."""

import limits
import pytest


@pytest.mark.parametrize(
    ("over", "warned", "failed"), [(0, 0, 0), (1, 1, 0), (1_999, 1, 0), (2_001, 0, 1)]
)
def test_tokens_above_a_cap_warn_before_they_fail(over, warned, failed, capsys):
    problems = list(limits.compare_tokens("docs", 100 + over, 100))
    printed = capsys.readouterr().out.splitlines()
    assert (len(printed), len(problems)) == (warned, failed)
    for line in printed + problems:
        assert f"docs is {over:,} tokens over its cap: delete" in line
