# SPDX-License-Identifier: Apache-2.0
"""Smoothed cross-entropies against explicit sums."""

import keras
import numpy as np
import pytest

from lambdanet.training.tasks.losses import (
    SmoothedBinaryCrossEntropy,
    SmoothedCrossEntropy,
)

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], np.float32)
LABELS = np.array([2, 1])


@pytest.mark.parametrize(
    ("smoothing", "labels"), [(0.0, LABELS), (0.1, LABELS[:, None]), (0.5, LABELS)]
)
def test_cross_entropy_with_smoothed_targets(smoothing, labels):
    log_probabilities = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    right = log_probabilities[[0, 1], LABELS]
    losses = (1 - smoothing) * right + smoothing * log_probabilities.mean(axis=1)
    got = SmoothedCrossEntropy(smoothing)(labels, LOGITS)
    assert float(got) == pytest.approx(-losses.mean(), rel=1e-5)


SOFT = np.array([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]], np.float32)


@pytest.mark.parametrize("labels", [LABELS, SOFT])
@pytest.mark.parametrize(("smoothing", "threshold"), [(0.3, 0.0), (0.1, 0.3)])
def test_binary_cross_entropy_is_mean_over_classes(labels, smoothing, threshold):
    targets = np.eye(3)[labels] if labels.ndim == 1 else labels
    if threshold:
        targets = targets > threshold
    targets = targets * (1 - smoothing) + smoothing / 3
    sigmoid = 1 / (1 + np.exp(-LOGITS))
    losses = targets * np.log(sigmoid) + (1 - targets) * np.log(1 - sigmoid)
    loss = SmoothedBinaryCrossEntropy(smoothing, threshold=threshold)
    assert float(loss(labels, LOGITS)) == pytest.approx(-losses.mean(), rel=1e-5)


@pytest.mark.parametrize("loss", [SmoothedCrossEntropy, SmoothedBinaryCrossEntropy])
def test_class_weights_multiply_losses_of_examples(loss):
    weights = (3.0, 0.5, 2.0)
    plain = np.array(loss(0.1).call(LABELS, LOGITS))
    hard = loss(0.1, weights).call(LABELS, LOGITS)
    np.testing.assert_allclose(hard, plain * [2.0, 0.5], rtol=1e-6)
    plain = np.array(loss(0.1).call(SOFT, LOGITS))
    soft = loss(0.1, weights).call(SOFT, LOGITS)
    np.testing.assert_allclose(
        soft, plain * [0.25 * 0.5 + 0.75 * 2, 0.5 * 3 + 0.5 * 0.5], rtol=1e-6
    )


def test_half_precision_logits_are_summed_in_float32():
    got = SmoothedCrossEntropy(0.1)(LABELS, keras.ops.cast(LOGITS, "bfloat16"))
    assert keras.backend.standardize_dtype(got.dtype) == "float32"


@pytest.mark.parametrize(
    "loss",
    [
        SmoothedCrossEntropy(0.2, (1.0, 2.0)),
        SmoothedBinaryCrossEntropy(0.1, threshold=0.2),
    ],
)
def test_loss_survives_serialization(loss):
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is type(loss)
    assert again.get_config() == loss.get_config()
