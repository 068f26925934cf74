# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of `lambdanet benchmark`: `layers` and `models`."""
