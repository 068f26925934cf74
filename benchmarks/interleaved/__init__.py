# SPDX-License-Identifier: Apache-2.0
"""What `python -m benchmarks.layers`, `.models`, `.input` and `.device` share: contenders that take turns."""
