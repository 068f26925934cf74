# SPDX-License-Identifier: Apache-2.0
"""One training run: its folder, devices, checkpoints, callbacks and schedules."""
