# SPDX-License-Identifier: Apache-2.0
"""TFRecords: parts of splits, orders and machines."""

import dataclasses
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import damage_record

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.records import RecordsSource
from lambdanet.training.data.sources import Shard

FILES, EACH = 20, 6  # more files than are interleaved
RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    **{"dataset": "tfrecord", "eval_split": "train[:1shard]", "augmentation": "none"},
    **{"global_batch_size": 16, "epochs": 3, "input_size": 8},
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Gray pictures, each of a different level."""
    folder = tmp_path_factory.mktemp("records")
    for index in range(FILES):
        with tf.io.TFRecordWriter(
            str(folder / records.shard_name("train", index, FILES))
        ) as writer:
            for number in range(EACH * index, EACH * (index + 1)):
                image = tf.io.encode_png(
                    np.full([8, 8, 3], 2 * number, np.uint8)
                ).numpy()
                writer.write(records.encode_record(image, number % 10))
    return str(folder)


def _numbers(batches):
    """The number of each picture in batches."""
    mean, std = RECIPE.mean[0], RECIPE.std[0]
    return [
        [round(float(x[0, 0, 0] * std + mean) * 127.5) for x in images.numpy()]
        for images, *_ in batches
    ]


@pytest.fixture(scope="module")
def whole(root):
    """The numbers of all batches of training."""
    return _numbers(Dataset.open(RECIPE, root).train())


def test_epochs_have_records_once_in_another_order(whole):
    epochs = [sum(whole[7 * epoch : 7 * epoch + 7], []) for epoch in range(3)]
    assert all(
        len(set(epoch)) == 7 * 16 and set(epoch) < set(range(FILES * EACH))
        for epoch in epochs
    )
    assert epochs[0] != epochs[1] != epochs[2]
    # 40 in a random order, 1 in the order of the files
    assert np.abs(np.diff(epochs[0])).mean() > 20


@pytest.mark.parametrize("step", [3, 7, 20])
def test_resumed_batches_equal_uninterrupted_ones(root, whole, step):
    assert _numbers(Dataset.open(RECIPE, root).train(step)) == whole[step:]


def test_earlier_files_are_not_opened(root, whole, tmp_path):
    """The first row of files is damaged after it was read."""
    # 96 records, from 16 files
    first = {number // EACH for number in sum(whole[:6], [])}
    assert len(first) == 16
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    source = RecordsSource(dataclasses.replace(RECIPE, num_classes=10), str(tmp_path))
    assert source.num_examples("train") == FILES * EACH  # counted before
    for index in first:
        (tmp_path / records.shard_name("train", index, FILES)).write_bytes(
            b"no records"
        )
    tf.compat.v1.set_random_seed(RECIPE.seed + 1)
    rest = source.examples("train", tf.constant(0, tf.int64), first=96)
    assert len(list(rest)) == 24


def test_other_records_keep_place_beside_damaged_ones(root, whole, tmp_path):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    file = tmp_path / records.shard_name("train", 3, FILES)
    damage_record(file, 2)
    lost = range(3 * EACH + 2, 4 * EACH)
    bad = BadRecords(limit=len(lost))
    batches = _numbers(Dataset.open(RECIPE, str(tmp_path), bad).train())
    for batch, undamaged in zip(batches, whole, strict=True):
        good = [number for number in undamaged if number not in lost]
        assert [a for a, b in zip(batch, undamaged, strict=True) if b in good] == good
    # Of three epochs.
    assert sorted(bad.names) == [f"{file.name}:{number}" for number in range(2, EACH)]
    assert _numbers(Dataset.open(RECIPE, str(tmp_path)).train(9)) == batches[9:]


@pytest.mark.parametrize(
    ("part", "files"),
    [("[:3shard]", (0, 3)), ("[3shard:]", (3, 20)), ("[1shard:3shard]", (1, 3))],
)
def test_part_of_split_is_some_of_its_files(root, part, files):
    recipe = dataclasses.replace(RECIPE, eval_split=f"train{part}")
    numbers = sum(_numbers(Dataset.open(recipe, root).eval()), [])
    assert numbers == list(range(*(EACH * file for file in files)))


def test_machines_read_disjoint_records(root):
    recipe = dataclasses.replace(RECIPE, epochs=1, global_batch_size=12)
    parts = [
        _numbers(Dataset.open(recipe, root).train(shard=Shard(i, 3, 3)))
        for i in range(3)
    ]
    assert [len(part) for part in parts] == [10, 10, 10]
    assert sorted(sum(sum(parts, []), [])) == list(range(FILES * EACH))


@pytest.mark.parametrize(
    ("files", "recipe", "message"),
    [
        ([], {}, "data_dir must be .*: train-00000-of-00008 .*; it has no such files"),
        (
            ["train-00001-of-00002"],
            {},
            "lacks 1 of 2 files, the first of them number 0",
        ),
        (["test-00000-of-00001"], {}, "unknown split in .* 'train'; accepted: test"),
        (
            ["train-00000-of-00001"],
            {"num_classes": 0},
            "num_classes must be .*, got 0; .*txt' is missing",
        ),
        (
            ["train-00000-of-00001"],
            {"train_split": "train[:5%]"},
            r"a name, or .*, got 'train\[:5%\]'",
        ),
        (
            ["train-00000-of-00001"],
            {},
            "split of dataset tfrecord must be one with images, got 'train'",
        ),
    ],
)
def test_invalid_files_are_rejected_in_one_line(tmp_path, files, recipe, message):
    for file in files:
        (tmp_path / file).touch()
    recipe = dataclasses.replace(RECIPE, **recipe)
    with pytest.raises(InputError, match=message) as caught:
        Dataset.open(recipe, str(tmp_path)).train()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "complete"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), EACH - 1),
        # Of a disk that was full.
        (lambda path: path.write_bytes(path.read_bytes() + bytes(32)), EACH),
        (lambda path: damage_record(path, 0, byte=7), 0),
        (lambda path: damage_record(path, 3, byte=0), 3),
        (lambda path: path.write_bytes(b"no records"), 0),
    ],
)
def test_file_of_unknown_count_is_refused(root, tmp_path, damage, complete):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    file = tmp_path / records.shard_name("train", 5, FILES)
    damage(file)
    message = (
        f"{str(file)!r} is damaged after {complete} records; how many follow is unknown"
    )
    with pytest.raises(InputError, match=re.escape(message)):
        Dataset.open(RECIPE, str(tmp_path)).check()
