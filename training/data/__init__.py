# SPDX-License-Identifier: Apache-2.0
"""Input pipelines: sources, decoding, augmentation and batches."""

from lambdanet import which_keras

which_keras.require_tf_keras(__name__)
