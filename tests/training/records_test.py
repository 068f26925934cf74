# SPDX-License-Identifier: Apache-2.0
"""TFRecords: parts of splits, orders, machines, and a tf.data service."""

import collections
import dataclasses
import gc

import numpy as np
import pytest
import tensorflow as tf
from programs.small_model import small_model

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data import records, service
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.records import RecordsSource
from lambdanet.training.data.shards import Shard
from lambdanet.training.train import train

FILES, EACH = 20, 6  # more files than are interleaved
RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    dataset="tfrecord",
    eval_split="train[:1shard]",
    augmentation="none",
    global_batch_size=16,
    epochs=3,
    input_size=8,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Gray pictures, each of a different level."""
    folder = tmp_path_factory.mktemp("records")
    for index in range(FILES):
        with tf.io.TFRecordWriter(str(folder / records.shard_name("train", index, FILES))) as writer:
            for number in range(EACH * index, EACH * (index + 1)):
                image = tf.io.encode_png(np.full([8, 8, 3], 2 * number, np.uint8)).numpy()
                writer.write(records.record(image, number % 10))
    return str(folder)


def _numbers(batches):
    """The number of each picture in batches."""
    mean, std = RECIPE.mean[0], RECIPE.std[0]
    return [[round(float(x[0, 0, 0] * std + mean) * 127.5) for x in images.numpy()] for images, *_ in batches]


@pytest.fixture(scope="module")
def whole(root):
    """The numbers of all batches of training."""
    return _numbers(Dataset.open(RECIPE, root).train())


def test_epochs_have_records_once_in_another_order(whole):
    epochs = [sum(whole[7 * epoch : 7 * epoch + 7], []) for epoch in range(3)]
    assert all(len(set(epoch)) == 7 * 16 and set(epoch) < set(range(FILES * EACH)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert np.abs(np.diff(epochs[0])).mean() > 20  # 40 in a random order, 1 in the order of the files


@pytest.mark.parametrize("step", [3, 7, 20])
def test_resumed_batches_equal_uninterrupted_ones(root, whole, step):
    assert _numbers(Dataset.open(RECIPE, root).train(step)) == whole[step:]


def test_earlier_files_are_not_opened(root, whole, tmp_path):
    """The first row of files is damaged after it was read."""
    first = {number // EACH for number in sum(whole[:6], [])}  # 96 records, from 16 files
    assert len(first) == 16
    for index in range(FILES):
        name = records.shard_name("train", index, FILES)
        contents = (type(tmp_path)(root) / name).read_bytes()
        (tmp_path / name).write_bytes(contents)
    source = RecordsSource(dataclasses.replace(RECIPE, num_classes=10), str(tmp_path))
    assert source.num_examples("train") == FILES * EACH  # counted before
    for index in first:
        (tmp_path / records.shard_name("train", index, FILES)).write_bytes(b"no records")
    tf.compat.v1.set_random_seed(RECIPE.seed + 1)
    rest = source.examples("train", tf.constant(0, tf.int64), first=96)
    assert len(list(rest)) == 24


@pytest.mark.parametrize(
    ("split", "count"),
    [("train", 120), ("train[:3shard]", 18), ("train[3shard:]", 102), ("train[1shard:3shard]", 12)],
)
def test_part_of_split_is_some_of_its_files(root, split, count):
    recipe = dataclasses.replace(RECIPE, eval_split=split)
    begin = int(split.partition("[")[2][:1] or 0) if "[:" not in split else 0
    numbers = sum(_numbers(Dataset.open(recipe, root).eval()), [])
    assert numbers == list(range(begin * EACH, begin * EACH + count))


def test_machines_read_disjoint_records(root):
    recipe = dataclasses.replace(RECIPE, epochs=1, global_batch_size=12)
    parts = [_numbers(Dataset.open(recipe, root).train(shard=Shard(i, 3, 3))) for i in range(3)]
    assert [len(part) for part in parts] == [10, 10, 10]
    assert sorted(sum(sum(parts, []), [])) == list(range(FILES * EACH))


@pytest.mark.parametrize(
    ("files", "recipe", "message"),
    [
        ([], {}, "data_dir must be .*: train-00000-of-00008 .*; it has no such files"),
        (["train-00001-of-00002"], {}, "lacks 1 of 2 files, the first of them number 0"),
        (["test-00000-of-00001"], {}, "unknown split in .* 'train'; accepted: test"),
        (["train-00000-of-00001"], {"num_classes": 0}, "num_classes must be .*, got 0; .*txt' is missing"),
        (
            ["train-00000-of-00001"],
            {"train_split": "train[:5%]"},
            r"split of tfrecord must be a name, or .*, got 'train\[:5%\]'",
        ),
        (["train-00000-of-00001"], {}, "split of dataset tfrecord must be one with images, got 'train'"),
    ],
)
def test_invalid_files_are_refused_in_one_line(tmp_path, files, recipe, message):
    for file in files:
        (tmp_path / file).touch()
    recipe = dataclasses.replace(RECIPE, **recipe)
    with pytest.raises(InputError, match=message) as caught:
        Dataset.open(recipe, str(tmp_path)).train()
    assert "\n" not in str(caught.value)


def test_truncated_file_counts_complete_records(root, tmp_path):
    contents = (type(tmp_path)(root) / records.shard_name("train", 0, FILES)).read_bytes()
    (tmp_path / "cut").write_bytes(contents[:-10])
    assert records.count_records(tmp_path / "cut") == EACH - 1


@pytest.fixture(scope="module")
def address():
    """A dispatcher with two workers on this machine."""
    dispatcher = tf.data.experimental.service.DispatchServer()
    config = tf.data.experimental.service.WorkerConfig(dispatcher.target.removeprefix("grpc://"))
    workers = [tf.data.experimental.service.WorkerServer(config) for _ in range(2)]
    yield dispatcher.target
    gc.collect()  # iterators that a run leaves would wait for a stopped dispatcher to release them
    del workers, dispatcher


def test_service_reads_each_record_once_per_pass(root, address):
    """Records of a slow worker arrive late; counts of a random draw would differ by 10."""
    passes = 20
    recipe = dataclasses.replace(RECIPE, global_batch_size=4)
    batches = Dataset.open(recipe, root).train(data_service=address).take(passes * FILES * EACH // 4)
    counts = collections.Counter(sum(_numbers(batches), []))
    assert set(counts) == set(range(FILES * EACH))
    assert all(abs(count - passes) <= 4 for count in counts.values())


def test_service_repeats_each_record(root, address):
    recipe = dataclasses.replace(RECIPE, global_batch_size=4, repeated_augmentation=2)
    for first, second, *others in _numbers(Dataset.open(recipe, root).train(data_service=address).take(9)):
        assert first == second and others[0] == others[1] and first != others[0]


def test_record_unreadable_for_worker_is_named(tmp_path, address):
    with tf.io.TFRecordWriter(str(tmp_path / records.shard_name("train", 0, 1))) as writer:
        for number in range(8):
            image = tf.io.encode_png(np.zeros([8, 8, 3], np.uint8)).numpy()
            writer.write(records.record(b"no picture" if number == 5 else image, number))
    bad = BadRecords()
    recipe = dataclasses.replace(RECIPE, global_batch_size=4)
    batches = list(Dataset.open(recipe, str(tmp_path), bad).train(data_service=address).take(6))
    assert [len(labels) for _, labels in batches] == [4] * 6
    assert bad.names == ["train-00000-of-00001.tfrecord:5"]


def test_run_with_service_trains(root, address, tmp_path, monkeypatch):
    monkeypatch.setattr("lambdanet.models.zoo.create_model", small_model)
    recipe = dataclasses.replace(RECIPE, epochs=1, input_size=16)
    assert train(recipe, tmp_path, root, data_service=address)["step"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data_service": "host:5000"}, "data_service must be grpc://HOST:PORT, .*, got 'host:5000'"),
        (
            {"data_service": "grpc://localhost:1", "deterministic": True},
            "data_service must be empty with deterministic",
        ),
        ({"data_service": "grpc://localhost:1"}, "got 'grpc://localhost:1'; no server answers: "),
    ],
)
def test_unusable_service_is_refused(root, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        train(RECIPE, tmp_path / "run", root, **arguments)
    assert not (tmp_path / "run").exists()


def test_service_with_pseudo_labels_is_refused(root):
    recipe = dataclasses.replace(RECIPE, num_classes=10, pseudo_labels="somewhere", pseudo_share=0.5)
    with pytest.raises(InputError, match="data_service must be empty with pseudo_labels"):
        service.check_service("grpc://localhost:1", recipe)
