# SPDX-License-Identifier: Apache-2.0
"""Exported detectors: SavedModels, predictions, drawings and the COCO table."""
