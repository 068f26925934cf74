# SPDX-License-Identifier: Apache-2.0
"""The number of rounds of a fuzz test, which the environment variable LAMBDANET_FUZZ multiplies."""

import os


def rounds(default: int) -> int:
    """Returns how many cases a fuzz test tries: `default` times LAMBDANET_FUZZ (1 if unset), at least 1."""
    return max(1, round(default * float(os.environ.get("LAMBDANET_FUZZ", "1"))))
