# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of `python -m benchmarks.layers`: `layers` and `models`."""
