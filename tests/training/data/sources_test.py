# SPDX-License-Identifier: Apache-2.0
"""Tests of what every source of labeled pictures promises: orders, labels, resumed orders and machines.

Training batches are made in the same way from every source, so three of them are enough here.
"""

import numpy as np
import picture_sources
import pytest
import tensorflow as tf
from picture_sources import COUNT, RECIPE, numbers
from training_runs import open_dataset

from lambdanet.training.data.sources import SINGLE_MACHINE, Shard

STEPS = 3  # per epoch


def _written(source, folders):
    root = folders.mktemp(source)
    changes = getattr(picture_sources, f"write_{source}")(root)
    return open_dataset(RECIPE, root, **changes)


@pytest.fixture(scope="module", params=["tfds", "tfrecord", "folder", "parquet"])
def dataset(request, tmp_path_factory):
    """Sixty pictures in each of the sources."""
    return _written(request.param, tmp_path_factory)


def _order(dataset, seed, shard=SINGLE_MACHINE, first=0):
    """Returns what identifies each picture in an order of training."""
    tf.compat.v1.set_random_seed(1)
    if seed is not None:
        seed = tf.constant(seed, tf.int64)
    examples = dataset.source.examples("train", seed, shard, first)
    return [
        (example["name"], int(example.get("number", 0)))
        for example in examples.as_numpy_iterator()
    ]


@pytest.mark.parametrize("shard", [SINGLE_MACHINE, Shard(1, 2)])
def test_orders_have_each_picture_once(dataset, shard):
    fixed = _order(dataset, None, shard)
    assert len(set(fixed)) == len(fixed) == COUNT // shard.count
    assert _order(dataset, None, shard) == fixed
    orders = [_order(dataset, seed, shard) for seed in (3, 4)]
    for order in orders:
        assert sorted(order) == sorted(fixed)
        # A third of 60 or 30 in a random order; 3 or less in the order of files or classes.
        places = [fixed.index(picture) for picture in order]
        assert np.abs(np.diff(places)).mean() > len(fixed) / 5
    assert orders[0] != orders[1]
    for first in (7, len(fixed) - 10):
        assert _order(dataset, 3, shard, first) == orders[0][first:]


def test_parts_of_machines_differ_in_size_by_one_at_most(dataset):
    pictures = []
    for index in range(7):
        shard = Shard(index, 7)
        part = _order(dataset, None, shard)
        assert len(part) == dataset.num_examples("train", shard)
        assert len(part) in (COUNT // 7, COUNT // 7 + 1)
        pictures += part
    assert len(set(pictures)) == len(pictures) == COUNT


def test_evaluation_is_in_order_with_last_partial_batch(dataset):
    batches = dataset.eval()
    shown = numbers(batches)
    assert [len(batch) for batch in shown] == [16, 16, 16, 12]
    assert sorted(sum(shown, [])) == list(range(COUNT))
    assert numbers(batches) == shown
    assert len(set(dataset.eval_names())) == COUNT


def test_a_recipe_of_one_channel_reads_gray(dataset):
    gray = {"mean": (0.0,), "std": (1 / 255,)}
    batches = list(open_dataset(dataset.recipe, dataset.data_dir, **gray).eval())
    assert {images.shape[-1] for images, _ in batches} == {1}
    assert sorted(sum(numbers(batches), [])) == list(range(COUNT))


@pytest.fixture(scope="module", params=["tfrecord", "folder", "parquet"])
def trained(request, tmp_path_factory):
    """A dataset, and the numbers of the pictures in all its batches of training."""
    dataset = _written(request.param, tmp_path_factory)
    return dataset, numbers(dataset.train())


def test_epochs_have_each_picture_once_in_another_order(trained):
    _, whole = trained
    epochs = [sum(whole[at : at + STEPS], []) for at in range(0, len(whole), STEPS)]
    assert [len(batch) for batch in whole] == 3 * STEPS * [16]
    for epoch in epochs:
        assert len(set(epoch)) == STEPS * 16
        assert set(epoch) < set(range(COUNT))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("step", [STEPS, 4])
def test_resumed_batches_equal_uninterrupted_ones(trained, step):
    """Between epochs and within one."""
    dataset, whole = trained
    tf.random.set_seed(2)  # nothing depends on it
    assert numbers(dataset.train(step)) == whole[step:]


def test_order_depends_on_seed_of_recipe(trained):
    dataset, whole = trained
    other = open_dataset(dataset.recipe, dataset.data_dir, seed=1, epochs=1)
    assert numbers(other.train()) != whole[:STEPS]


@pytest.mark.slow
def test_machines_train_on_disjoint_parts_and_resume(trained):
    """Two machines with two devices each have two batches of three pictures per step."""
    dataset, _ = trained
    changes = {"epochs": 1, "global_batch_size": 12}
    dataset = open_dataset(dataset.recipe, dataset.data_dir, **changes)
    shards = [Shard(index, 2, 4) for index in range(2)]
    parts = [numbers(dataset.train(shard=shard)) for shard in shards]
    for part in parts:
        assert [len(batch) for batch in part] == 10 * [3]
    assert sorted(sum(sum(parts, []), [])) == list(range(COUNT))
    assert numbers(dataset.train(2, shards[1])) == parts[1][4:]
