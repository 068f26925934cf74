# SPDX-License-Identifier: Apache-2.0
"""Training data for detectors: COCO annotations, records, masks, and pictures of shapes."""
