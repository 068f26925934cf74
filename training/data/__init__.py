# SPDX-License-Identifier: Apache-2.0
"""Input pipelines: sources, decoding, augmentation and batches."""
