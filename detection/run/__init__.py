# SPDX-License-Identifier: Apache-2.0
"""One training run of a detector: its folder, checkpoints and training step."""
