# SPDX-License-Identifier: Apache-2.0
"""Training with `keras.Model.fit`, evaluation, export and prediction; with tf_keras alone."""

from lambdanet import which_keras

which_keras.require_tf_keras(__name__)
