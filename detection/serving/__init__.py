# SPDX-License-Identifier: Apache-2.0
"""Exported detectors: the SavedModel, predictions, drawings and the COCO table."""
