# SPDX-License-Identifier: Apache-2.0
"""Smoothed cross-entropy against explicit sums."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from lambdanet.training.run.losses import SmoothedCrossEntropy

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], np.float32)
LABELS = np.array([2, 1])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None]])
def test_cross_entropy_with_smoothed_targets(smoothing, labels):
    log_probabilities = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    right = log_probabilities[[0, 1], LABELS]
    expected = -((1 - smoothing) * right + smoothing * log_probabilities.mean(axis=1)).mean()
    got = SmoothedCrossEntropy(smoothing)(tf.constant(labels), tf.constant(LOGITS))
    assert float(got) == pytest.approx(expected, rel=1e-5)


def test_half_precision_logits_are_summed_in_float32():
    got = SmoothedCrossEntropy(0.1)(tf.constant(LABELS), tf.cast(LOGITS, tf.bfloat16))
    assert got.dtype == tf.float32


def test_loss_survives_serialization():
    loss = SmoothedCrossEntropy(0.2)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(again, SmoothedCrossEntropy) and again.label_smoothing == 0.2
