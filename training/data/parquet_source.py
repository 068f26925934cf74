# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder` in Parquet files, as Hugging Face writes them.

    PICTURES/train-00000-of-00002.parquet    PICTURES/train-00001-of-00002.parquet
    PICTURES/validation-00000-of-00001.parquet

The column `image` has the bytes of a picture file, or a struct with a field `bytes`, and `label` integers or
texts. The classes are the names that Hugging Face wrote into the schema. Without them they are the labels of
the training split, in the order of a table's (`tables`).

A reader has at most `GROUPS_IN_MEMORY` row groups in memory. A pass of training has all row groups in a
random order, and the rows of those that are in memory together are shuffled.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
from pyarrow import parquet

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.training.data.bad_records import Example
from lambdanet.training.data.folder import find_parquet_files
from lambdanet.training.data.records import find_splits
from lambdanet.training.data.sources import Row
from lambdanet.training.data.tables import TableSource, Texts, as_texts

GROUPS_IN_MEMORY = 2


class ParquetSource(TableSource):
    """The pictures in the Parquet files of a folder; a `sources.Source`.

    `InputError` for a file that cannot be read or lacks a column, for a set that lacks a file, and for labels
    as of `TableSource`.
    """

    knows_labels = False  # a random order would read a row group for each picture

    def read_columns(self, columns: Example, seed: Any, first: Any) -> tf.data.Dataset:
        groups: dict[bytes, list[bytes]] = {}  # those in memory

        def read(name: bytes) -> bytes:
            group, _, place = name.rpartition(b":")
            if group not in groups:
                if len(groups) == GROUPS_IN_MEMORY:
                    del groups[next(iter(groups))]
                groups[group] = read_group(os.fsdecode(group))
            pictures = groups[group]
            # What cannot be read is a bad record.
            return pictures[int(place)] or b"" if pictures else b""

        def with_contents(example: Example) -> Example:
            contents = tf.numpy_function(read, [example["name"]], tf.string)
            return example | {"contents": tf.ensure_shape(contents, [])}

        if seed is not None:
            order = shuffle(columns["name"], [self._seed, seed])
            columns = {key: tf.gather(columns[key], order) for key in columns}
        return super().read_columns(columns, None, first).map(with_contents)

    def check_listed(self) -> None:
        """Leaves the number of classes to `Dataset.check`; all files were opened."""

    def check_readable(self, split: str) -> None:
        """Leaves bad records to the run."""

    def _read(self, path: str) -> list[Texts]:
        find_splits(Path(path), parquet=True)  # none of a numbered set is missing
        files = find_parquet_files(path)
        rows = [row for file in files for row in rows_of_file(file)]
        self._names = class_names_of(files[0])
        return rows

    def _find_classes(self, rows: list[Row]) -> list[str]:
        return self._names or super()._find_classes(rows)


def rows_of_file(path: str) -> list[Texts]:
    """Returns the rows of a file, as of a table; `InputError` where it has none, or lacks a column."""
    name = os.path.basename(path)
    split = name.partition("-")[0]
    rows = []
    try:
        with parquet.ParquetFile(path) as file:
            pictures_of(file.schema_arrow.empty_table())
            names = class_names_of(path)
            known = {str(number): label for number, label in enumerate(names)}
            for group in range(file.num_row_groups):
                texts = as_texts(file.read_row_group(group, ["label"]), path)
                for place, label in enumerate(texts["label"].fill_null("").to_pylist()):
                    if names:  # another number may be the name of a class
                        label = known.get(label, f"number {label}")
                    file_row = f"{name}:{group}:{place}"
                    rows.append({"file": file_row, "label": label, "split": split})
    except (pyarrow.ArrowException, OSError, KeyError) as error:
        raise InputError(f"{path!r} cannot be read: {one_line(error)}") from None
    if not rows:
        raise invalid(f"rows of {path!r}", "one or more", 0)
    return rows


def shuffle(names: list[bytes], seed: list[Any]) -> tf.Tensor:
    """Returns the places of rows PATH:GROUP:PLACE in an order of training, int32 [n]."""
    of_rows = [name.rpartition(b":")[0] for name in names]
    found, groups = np.unique(of_rows, return_inverse=True)
    order = tf.random.experimental.stateless_shuffle(tf.range(len(found)), seed)
    turns = tf.gather(order // GROUPS_IN_MEMORY, groups)
    noise = tf.random.stateless_uniform([len(names)], seed[::-1], dtype=tf.float64)
    return tf.argsort(tf.cast(turns, tf.float64) + noise)


def read_group(group: str) -> list[bytes]:
    """Returns the bytes of the pictures in PATH:GROUP; none where it is damaged."""
    path, _, number = group.rpartition(":")
    try:
        with parquet.ParquetFile(path) as file:
            return pictures_of(file.read_row_group(int(number), ["image"])).to_pylist()
    except (pyarrow.ArrowException, OSError):
        return []


def pictures_of(table: pyarrow.Table) -> pyarrow.ChunkedArray:
    """Returns the column with the bytes of pictures; `KeyError` where there is none."""
    columns = table.flatten()
    name = "image" if "image" in columns.column_names else "image.bytes"
    return columns[name].cast(pyarrow.large_binary())


def class_names_of(path: str) -> list[str]:
    """Returns the names of classes that Hugging Face wrote into a file; [] where there are none."""
    try:
        described = json.loads(parquet.read_schema(path).metadata[b"huggingface"])
        return list(described["info"]["features"]["label"]["names"])
    except (KeyError, TypeError, ValueError):
        return []
