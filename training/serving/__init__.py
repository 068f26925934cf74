# SPDX-License-Identifier: Apache-2.0
"""Exported classifiers: SavedModel, LiteRT, ONNX, and predictions with them."""

from lambdanet import which_keras

which_keras.require_tf_keras(__name__)
