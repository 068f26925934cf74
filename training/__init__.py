# SPDX-License-Identifier: Apache-2.0
"""Training with `keras.Model.fit` on TensorFlow or JAX, evaluation, export and prediction."""
