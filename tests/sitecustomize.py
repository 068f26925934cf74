# SPDX-License-Identifier: Apache-2.0
"""Loads the patches of `quick_python`; Python imports this file first in every process that tests start."""

import os

if "LAMBDANET_PLAIN" not in os.environ:
    import quick_python  # noqa: F401
