# SPDX-License-Identifier: Apache-2.0
"""TFRecords: files that are not opened, damaged ones, parts of splits, and files that cannot be used."""

import gzip
import re
import runpy
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from helpers import damage_record, idx
from pages import PAGES
from picture_sources import (
    COUNT,
    FILES,
    RECIPE,
    assert_good_in_place,
    numbers,
    pixels,
    write_tfrecord,
)
from programs.run_page import BLOCK
from refusals import refused
from training_runs import open_dataset

from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.records import RecordsSource

EACH = COUNT // FILES
RECORDS = replace(
    RECIPE, dataset="tfrecord", eval_split="train[:1shard]", num_classes=3
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    write_tfrecord(folder)
    return folder


@pytest.fixture(scope="module")
def whole(root):
    """The numbers of all batches of training."""
    return numbers(open_dataset(RECORDS, root).train())


@pytest.fixture
def copy(root, tmp_path):
    """A folder of the same files, to be damaged."""
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_earlier_files_are_not_opened(copy, whole):
    """The first row of files is damaged after it was read."""
    # 48 records, from 16 files
    first = {number // EACH for number in sum(whole[:3], [])}
    assert len(first) == 16
    source = RecordsSource(RECORDS, str(copy))
    assert source.num_examples("train") == COUNT  # counted before
    for index in first:
        name = records.shard_name("train", index, FILES)
        (copy / name).write_bytes(b"no records")
    tf.compat.v1.set_random_seed(RECORDS.seed + 1)
    rest = source.examples("train", tf.constant(0, tf.int64), first=48)
    assert len(list(rest)) == COUNT - 48


@pytest.mark.slow
def test_other_records_keep_place_beside_damaged_ones(copy, whole):
    file = copy / records.shard_name("train", 3, FILES)
    damage_record(file, 1)
    lost = range(3 * EACH + 1, 4 * EACH)
    bad = BadRecords(limit=len(lost))
    batches = numbers(open_dataset(RECORDS, copy, bad).train())
    assert_good_in_place(batches, whole, lost)
    # Of three epochs.
    assert sorted(bad.names) == [f"{file.name}:{number}" for number in range(1, EACH)]
    assert numbers(open_dataset(RECORDS, copy).train(5)) == batches[5:]


@pytest.mark.parametrize(
    ("part", "files"),
    [("[:3shard]", (0, 3)), ("[3shard:]", (3, FILES)), ("[1shard:3shard]", (1, 3))],
)
def test_part_of_split_is_some_of_its_files(root, part, files):
    dataset = open_dataset(RECORDS, root, eval_split=f"train{part}")
    shown = sum(numbers(dataset.eval()), [])
    assert shown == list(range(*(EACH * file for file in files)))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (None, {}, "data_dir must be .*: train-00000-of-00008 .*; it has no such file"),
        (
            ["train-00000-of-00001", "train-00002-of-00008"],
            {},
            "has 'train-00000-of-00001' and 'train-00002-of-00008': files of two conv",
        ),
        (
            ["train-00000-of-00001", "train-00000-of-00001.tfrecord"],
            {},
            "has 'train-00000-of-00001' and 'train-00000-of-00001.tfrecord': files",
        ),
        ("train-00001-of-00002", {}, "lacks 1 of 2 files, the first .* number 0"),
        (
            "train-00000-of-00001",
            {"num_classes": 0},
            "num_classes must be .*, got 0; .*txt' is missing",
        ),
        (
            "train-00000-of-00001",
            {"train_split": "train[:5%]"},
            r"a name, or .*, got 'train\[:5%\]'",
        ),
    ],
)
def test_invalid_files_are_rejected_in_one_line(tmp_path, file, changes, message):
    for name in np.atleast_1d(file or []):
        (tmp_path / name).touch()
    with refused(message):
        open_dataset(RECORDS, tmp_path, **changes).train()


@pytest.mark.parametrize(
    ("damage", "complete"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), EACH - 1),
        # Of a disk that was full.
        (lambda path: path.write_bytes(path.read_bytes() + bytes(32)), EACH),
        (lambda path: damage_record(path, 2, byte=0), 2),
        (lambda path: path.write_bytes(b"no records"), 0),
    ],
)
def test_file_of_unknown_count_is_refused(copy, damage, complete):
    file = copy / records.shard_name("train", 5, FILES)
    damage(file)
    message = f"{str(file)!r} is damaged after {complete} records; how many follow is"
    with refused(re.escape(message)):
        open_dataset(RECORDS, copy).check()


def test_program_on_the_page_writes_files_of_mnists_format(tmp_path, monkeypatch):
    """Both splits have the pictures 0, 1, ..., each with its label."""
    images = np.stack([pixels(number, 1)[..., 0] for number in range(COUNT)])
    labels = (np.arange(COUNT) % 3).astype(np.uint8)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        for name in ("train", "t10k"):
            path = tmp_path / f"{name}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx(array)))
    blocks = dict(
        text.split("\n", maxsplit=1)
        for language, text in BLOCK.findall(PAGES["docs/how-to/tfrecords.md"])
        if language == "python"
    )
    program = tmp_path / "program.py"
    program.write_text(blocks["# idx_to_records.py"])
    monkeypatch.setattr(sys, "argv", [str(program), str(tmp_path), str(tmp_path)])
    runpy.run_path(str(program), run_name="__main__")
    gray = {"mean": (0.0,), "std": (1 / 255,)}
    dataset = open_dataset(RECORDS, tmp_path, eval_split="test", **gray)
    for name in ("train", "test"):
        shown = numbers(replace(dataset, eval_split=name).eval())
        assert sorted(sum(shown, [])) == list(range(COUNT))


def test_classes_of_no_picture_end_the_run(tmp_path):
    for split, classes in (("train", [1]), ("validation", [])):
        label = tf.train.Feature(int64_list=tf.train.Int64List(value=classes))
        path = tmp_path / records.shard_name(split, 0, 1)
        records.write_records(str(path), [records.serialize({records.LABEL: label})])
    source = records.MultilabelRecords(RECORDS, str(tmp_path))
    source.check_readable("train")
    with refused("no picture of split 'validation' has a class"):
        source.check_readable("validation")
