# SPDX-License-Identifier: Apache-2.0
"""Detection and instance segmentation with TensorFlow Model Garden: backbones, experiments, training and use."""
