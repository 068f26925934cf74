# SPDX-License-Identifier: Apache-2.0
"""Mixup and CutMix: against weighted sums, against timm, and dependent on seed and step alone."""

import dataclasses

import numpy as np
import picture_sources
import pytest
import tensorflow as tf
from helpers import assert_close, images
from numpy.testing import assert_array_equal
from picture_sources import write_folder
from training_runs import open_dataset, recipe_with

from lambdanet.training.data import augment
from lambdanet.training.data.sources import Shard

SEEDS = [tf.constant([5, number], tf.int64) for number in range(60)]
LABELS = np.array([2, 0, 1, 3])
RECIPE = recipe_with("digits", mixup_alpha=0.2, cutmix_alpha=1.0)


SOFT = np.array([[0.5, 0.5, 0, 0], [0, 0.2, 0.8, 0], [0, 0, 0, 1], [0.1, 0, 0, 0.9]])


@pytest.mark.parametrize("labels", [LABELS, SOFT.astype(np.float32)])
def test_mix_weights_pixels_and_labels_alike(labels):
    batch = images(4, 3, 5, 2).numpy()
    shares = np.random.default_rng(0).random([3, 5, 1]).astype(np.float32)
    mixed, targets = augment.mix(
        tf.constant(batch), tf.constant(labels), tf.constant(shares), 4
    )
    expected = (1 - shares) * batch + shares * batch[::-1]
    np.testing.assert_allclose(mixed, expected, rtol=1e-4)
    share = shares.mean()
    given = np.eye(4)[labels] if labels is LABELS else labels
    assert_close(targets, (1 - share) * given + share * given[::-1], 1e-6)


def test_cutmix_rectangle_equals_timm(timm, monkeypatch):
    from timm.data import mixup

    for seed in SEEDS[:20]:
        shares = augment.cutmix_shares(tf.constant([1, 20, 30, 3]), 1.0, seed)
        shares = shares.numpy()[..., 0]
        kept = 1 - augment._beta(1.0, seed).numpy()
        centers = tf.random.stateless_uniform([2], seed + augment.MIX_CENTER).numpy()
        drawn = iter([int(centers[0] * 20), int(centers[1] * 30)])
        monkeypatch.setattr(
            np.random, "randint", lambda low, high, size=None, drawn=drawn: next(drawn)
        )
        (top, bottom, left, right), share = mixup.cutmix_bbox_and_lam(
            (1, 3, 20, 30), kept
        )
        expected = np.zeros([20, 30])
        expected[top:bottom, left:right] = 1
        assert_array_equal(shares, expected)
        assert 1 - shares.mean() == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_mixup_shares_have_moments_of_beta(alpha):
    draws = np.array([float(augment._beta(alpha, seed)) for seed in SEEDS])
    assert np.all((draws >= 0) & (draws <= 1))
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(draws.mean() - 0.5) < 3 * np.sqrt(variance / len(draws))
    assert 0.5 * variance < draws.var() < 1.6 * variance


def _batches():
    return tf.data.Dataset.range(6).map(
        lambda n: (tf.random.stateless_normal([4, 8, 8, 1], [1, n]), LABELS)
    )


def test_devices_and_machines_mix_differently():
    """Step 1 of two machines with two devices each has the batches 2 and 3 of each machine."""
    recipe = dataclasses.replace(RECIPE, mixup_alpha=1.0, cutmix_alpha=0)
    shards = [Shard(index, 2, 4, pad_last_batch=True) for index in (0, 1)]
    shares = [
        labels[0].numpy().max()
        for shard in shards
        for _, labels in augment.mix_batches(_batches(), recipe, 0, shard)
    ]
    assert len(set(shares)) == len(shares)
    (_, labels), *_ = augment.mix_batches(_batches().skip(2), recipe, 1, shards[1])
    assert labels[0].numpy().max() == shares[6 + 2]


def test_training_reads_mixed_batches(tmp_path):
    """They are normalized before, as levels are no integers then."""
    changes = write_folder(tmp_path, 6) | {"global_batch_size": 6}
    unmixed = open_dataset(picture_sources.RECIPE, tmp_path, **changes)
    plain, numbers = next(iter(unmixed.train()))
    dataset = open_dataset(unmixed.recipe, tmp_path, mixup_alpha=0.2)
    batches = list(dataset.train())
    levels = plain[:, 0, 0, 0]
    share = (batches[0][0][0, 0, 0, 0] - levels[0]) / (levels[-1] - levels[0])
    classes = np.eye(picture_sources.CLASSES)[numbers]
    expected = classes * (1 - share) + classes[::-1] * share
    assert_close(batches[0][1], expected, 1e-5)
    labels = [labels.numpy() for _, labels in batches]
    assert_close(np.sum(labels, axis=2), 1.0, 1e-6)
    # The first share of each batch, unless both pictures have one class.
    assert len({float(label.max(axis=1).min()) for label in labels}) == 3
    ((pictures, again),) = dataset.train(2)
    assert_array_equal(pictures, batches[2][0])
    assert_array_equal(again, labels[2])
