# SPDX-License-Identifier: Apache-2.0
"""Training with `keras.Model.fit`, evaluation, export and prediction; with tf_keras alone.

A recipe's model, optimizer and loss (`run.build`), and their check for a TPU (`tpu`), also support Keras 3.
"""
