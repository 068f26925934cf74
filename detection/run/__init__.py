# SPDX-License-Identifier: Apache-2.0
"""Training runs of detectors: training, the model_dir, checkpoints and the training step."""
