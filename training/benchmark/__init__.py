# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of `lambdanet benchmark`: `layers`, `models`, `inputs` and `loop`."""
