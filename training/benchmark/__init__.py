# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of `lambdanet benchmark`: `layers` and `models`."""

from lambdanet import which_keras

which_keras.require_tf_keras(__name__)
