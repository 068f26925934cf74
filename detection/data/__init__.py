# SPDX-License-Identifier: Apache-2.0
"""Data of detectors: COCO annotations, records, masks and a synthetic data set of shapes."""
