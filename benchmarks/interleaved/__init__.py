# SPDX-License-Identifier: Apache-2.0
"""Runs contenders in turns, for `python -m benchmarks.layers`, `.models`, `.input` and `.device`."""
