# SPDX-License-Identifier: Apache-2.0
"""Exported classifiers: SavedModel, LiteRT, ONNX, and predictions with them."""
