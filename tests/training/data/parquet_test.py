# SPDX-License-Identifier: Apache-2.0
"""Pictures in Parquet files: batches as of class folders, row groups in memory, refused files."""

import json
import os
import weakref
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from helpers import assert_equal_batches
from picture_sources import COUNT, RECIPE, numbers, write_folder, write_parquet
from processes import run_code
from pyarrow import parquet
from refusals import refused
from training_runs import open_dataset

from lambdanet.training.data import parquet_source


def test_batches_are_those_of_class_folders(tmp_path, monkeypatch):
    """Of the same pictures in the same order, also from a step within an epoch on."""
    changes = {"augmentation": "affine", "color_jitter": 0.5}
    changes |= write_parquet(tmp_path, group=20)
    tables = open_dataset(RECIPE, tmp_path, **changes)
    write_folder(tmp_path / "folders")
    folders = open_dataset(RECIPE, tmp_path / "folders", **changes)

    def in_that_order(split, *arguments):
        paths = [f"{folders.data_dir}/{split}/{n % 3}/{n:02}.png" for n in range(COUNT)]

        def file_of(example):
            row = tf.strings.split(example["name"], ":")[-2:]
            number = tf.tensordot([20, 1], tf.strings.to_number(row, "int32"), 1)
            return {
                "name": tf.gather(paths, number),
                "label": tf.cast(number, "int64") % 3,
            }

        return tables.source.examples(split, *arguments).map(file_of)

    monkeypatch.setattr(folders.source, "examples", in_that_order)
    assert_equal_batches(tables.train(4), folders.train(4))
    assert_equal_batches(tables.eval(), folders.eval())


def test_two_row_groups_are_shuffled_together_and_in_memory(tmp_path, monkeypatch):
    source = open_dataset(RECIPE, tmp_path, **write_parquet(tmp_path, group=5)).source

    read = parquet_source.read_group
    alive = weakref.WeakSet()
    counts = []

    class Pictures(list):
        __hash__ = object.__hash__

        def __init__(self, group):
            super().__init__(read(group))
            alive.add(self)
            counts.append(len(alive))

    monkeypatch.setattr(parquet_source, "read_group", Pictures)
    names = [example["name"].numpy() for example in source.examples("train", 3)]
    groups = [int(name.split(b":")[1]) for name in names]
    for window in np.reshape(groups, [6, 10]).tolist():
        assert len(set(window)) == 2 and sorted(window) != window
    firsts = [min(groups[at : at + 10]) for at in range(0, 60, 10)]
    assert firsts != sorted(firsts)
    assert len(counts) == 12 and max(counts) == 2


def test_what_is_no_picture_is_a_bad_record(tmp_path):
    """Also a row group that is damaged."""
    changes = write_parquet(tmp_path, group=5)
    path = tmp_path / "validation-0.parquet"
    table = parquet.read_table(path).to_pydict()
    table["image"][7] = {"bytes": b"no picture"}
    table["image"][11] = {"bytes": None}
    parquet.write_table(pa.table(table), path, row_group_size=5)
    column = parquet.read_metadata(path).row_group(4).column(0)
    with path.open("r+b") as file:
        file.seek(column.dictionary_page_offset)
        file.write(b"\xff" * column.total_compressed_size)
    dataset = open_dataset(RECIPE, tmp_path, **changes)
    lost = {7, 11, *range(20, 25)}
    assert {*sum(numbers(dataset.eval()), [])} == {*range(COUNT)} - lost
    named = {f"{path}:{number // 5}:{number % 5}" for number in lost}
    assert set(dataset.bad_records.names) == named


def _open(folder, label, names=None, image=b""):
    table = pa.table({"image": [image] * len(label), "label": label})
    described = {"info": {"features": {"label": {"names": names}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    parquet.write_table(table, folder / "train-00000-of-00001.parquet")
    return open_dataset(RECIPE, folder, dataset="folder", num_classes=0).source


def test_classes_are_named_in_the_schema(tmp_path):
    source = _open(tmp_path, [2, 0], ["dog", "cat", "ant"])
    assert source.class_names == ["dog", "cat", "ant"]
    assert [row.label for row in source.rows("train")] == [2, 0]
    assert _open(tmp_path, [10, 9]).class_names == ["9", "10"]


def test_files_that_cannot_be_used_are_refused(tmp_path):
    with refused("unknown label of .*parquet:0:1.* 'number 2'; .*"):
        _open(tmp_path, [0, 2], ["1", "2"]).rows("train")
    with refused("class 0 of .* must be a name of one line .*, got ''"):
        _open(tmp_path, ["a", None])
    with refused("'.*.parquet' cannot be read: Unsupported cast .*"):
        _open(tmp_path, [0, 1], image=1)
    with refused("rows of .* must be one or more, got 0"):
        _open(tmp_path, pa.array([], "string"))
    path = tmp_path / "train-00000-of-00001.parquet"
    open_again = partial(open_dataset, RECIPE, tmp_path, dataset="folder")
    for column in ("image", "label"):
        parquet.write_table(pa.table({column: ["a"]}), path)
        with refused("'.*.parquet' cannot be read: .*does not exist in schema.*"):
            open_again()
    with refused("data_dir must be .*; it has no such files"):
        open_again(dataset="tfrecord")
    path.write_bytes(path.read_bytes()[:-9])
    with refused("'.*.parquet' cannot be read: .*"):
        open_again()
    path.rename(tmp_path / "train-00000-of-00002.parquet")
    with refused("split 'train' in .* lacks 1 of 2 files, .*"):
        open_again()


@pytest.mark.weekly
def test_memory_stays_bounded_on_a_large_file(tmp_path):
    """A gigabyte in row groups of 16 MB takes no more than an eighth of it."""
    png = tf.io.encode_png(np.zeros([8, 8, 3], np.uint8)).numpy()
    # What follows the end of a PNG is not read.
    images = [png + os.urandom(1 << 18) for _ in range(64)]
    table = pa.table({"image": images, "label": [0, 1] * 32})
    with parquet.ParquetWriter(tmp_path / "train-0.parquet", table.schema) as file:
        for _ in range(64):
            file.write_table(table)
    program = f"""
import resource
from lambdanet import configs
from lambdanet.training.run.loop import Dataset
data = Dataset.open(configs.get_recipe("folder"), {str(tmp_path)!r})
for number, _ in enumerate(data.train(count=64)):
    if number in (8, 63):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    before, after = map(int, run_code(program).stdout.split())
    assert after - before < 1 << 17  # kilobytes
