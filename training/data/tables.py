# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder` in a table, a csv or parquet file with three columns.

    file,label,split
    a/1.jpg,cat,train
    b/7.png,dog,validation

The paths in it are relative to the data_dir or, without one, to the folder of the table. The classes are the
labels of the training split, in the order of their names, or of their values if all are integers. Rows may be
repeated, but a file has one label, and is not both in the splits of training and evaluation.
"""

import functools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
from pyarrow import csv, parquet

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, invalid, one_line, unknown
from lambdanet.training.data.folder import PictureFiles

COLUMNS = ("file", "label", "split")
Row = dict[str, str]  # by column


# Or "07" would become the number 7. Some tables have spaces around commas.
TEXTS = {
    form.format(name): pyarrow.string()
    for name in (*COLUMNS, "labels", "mask")
    for form in ("{}", " {}", "{} ", " {} ")
}
# In `labels`, by mistake, and around names.
SEPARATORS = r"[,|;\[\]'\"]"
INDEX = ("", "Unnamed: 0", "__index_level_0__")  # columns of pandas


# What a column of a class may say.
PRESENCE = {
    "": "",
    "nan": "",
    **dict.fromkeys(("0", "0.0", "False"), "0"),
    **dict.fromkeys(("1", "1.0", "True"), "1"),
}

READERS = {
    ".csv": lambda path: csv.read_csv(
        path, convert_options=csv.ConvertOptions(column_types=TEXTS)
    ),
    ".parquet": parquet.read_table,
}


class TableSource(PictureFiles):
    """The pictures in the table `labels` of a recipe, in `data_dir` or beside it; a `sources.Source`.

    `InputError` for a table that cannot be read, has other columns, contradictory rows, or less than two
    classes, or whose first picture does not exist.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        super().__init__(recipe)
        self._recipe = recipe
        self._table = os.path.expanduser(recipe.labels or data_dir or "")
        self._root = os.path.expanduser(data_dir or os.path.dirname(self._table))
        rows = self._read_rows()
        self._rows = _checked(rows, self._table, self._root, recipe)
        self.class_names = self._find_classes(self._split(recipe.train_split))
        if len(self.class_names) < 2:
            raise invalid(
                f"classes in {self._table!r}", "two or more labels", self.class_names
            )
        first = os.path.join(self._root, self._rows[0]["file"])
        if not os.path.isfile(first):
            raise invalid(
                f"first file in {self._table!r}", "a picture below the data_dir", first
            )

    def _read_rows(self) -> list[Row]:
        return read_rows(self._table)

    def _find_classes(self, rows: list[Row]) -> list[str]:
        """Returns the names of the classes, of the rows of training."""
        return _in_order({row["label"] for row in rows})

    def _list_files(self, split: str) -> tuple[list[bytes], list[Any]]:
        rows = self._split(split)
        labels = [self._label(row) for row in rows]
        paths = [os.fsencode(os.path.join(self._root, row["file"])) for row in rows]
        return paths, labels

    def _label(self, row: Row) -> Any:
        return self._number(row["label"], row)

    def _number(self, name: str, row: Row) -> int:
        """Returns the number of a class; `InputError` where there is none of that name."""
        if name not in self._numbers:
            where = f"label of {row['file']!r} in {self._table!r}"
            raise unknown(where, name, self.class_names)
        return self._numbers[name]

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.class_names)}

    def _split(self, split: str) -> list[Row]:
        rows = [row for row in self._rows if row["split"] == split]
        if not rows:
            raise unknown(
                f"split in {self._table!r}:",
                split,
                {row["split"] for row in self._rows},
            )
        return rows


class MultilabelTable(TableSource):
    """The pictures in a table with any number of classes for each; a `sources.Source`.

    Beside `file` and `split`, it has a column `labels` with names between semicolons, or a column for each
    class, with 1, 0 or nothing: unknown. Errors as of `TableSource`.
    """

    label_type = tf.float32

    def _read_rows(self) -> list[Row]:
        table = _load(self._table, "labels")
        names = table.column_names
        self._columns = [name for name in names if name not in ("file", "split")]
        has_columns = {"file", "split"} <= set(names) and len(set(names)) == len(names)
        has_columns &= set(INDEX).isdisjoint(names)
        if not has_columns or ("labels" in names and len(names) > 3):
            accepted = "file, split, and either labels or one for each class, and no index of pandas"
            raise invalid(
                f"columns of {self._table!r}", accepted, names, _comma_hint(names)
            )
        if not len(table):
            raise invalid(f"rows of {self._table!r}", "one or more", 0)
        values = table.select(self._columns).to_pylist()
        texts = [name for name in names if name in ("file", "split", "labels")]
        rows = _as_texts(table, self._table, texts).to_pylist()
        for number, row in enumerate(rows, start=1):
            where = f"row {number} of {self._table!r}"
            if not row["file"] or not row["split"]:
                raise invalid(where, "a file and a split", row)
            if "labels" in row:
                row["label"] = ";".join(sorted(_split_names(row.pop("labels"))))
                continue
            presences = []
            for name, value in values[number - 1].items():
                text = "" if value is None else str(value).strip()
                if text not in PRESENCE:
                    raise invalid(f"{name} in {where}", "0, 1 or nothing", value)
                presences.append(PRESENCE[text])
            row["label"] = ";".join(presences)
        return rows

    def _find_classes(self, rows: list[Row]) -> list[str]:
        names = self._columns
        if names == ["labels"]:
            names = _in_order(
                {name for row in rows for name in _split_names(row["label"])}
            )
            parts = re.split(SEPARATORS, ";".join(names).casefold())
            counts = Counter(map(str.strip, parts))
            del counts[""]
            for part, count in counts.most_common(1):
                if count > 1:
                    print(
                        f"{count} classes in {self._table} have the part {part!r}: names are separated by "
                        "semicolons, and each has one spelling",
                        flush=True,
                    )
        print(f"{len(names)} classes in {self._table}: {', '.join(names)}", flush=True)
        return names

    def check_readable(self, split: str) -> None:
        """Prints the classes that all or no pictures have; `InputError` where these are all classes."""
        super().check_readable(split)
        labels = np.array(self._files(split)[1])
        for value, kind in (
            (1, "present"),
            (0, "absent (0; an empty field is unknown)"),
        ):
            is_found = np.any(labels == value, axis=0)
            line = f"{kind} in no picture of {split!r} in {self._table!r}"
            if not is_found.any():
                raise InputError(f"all classes are {line}")
            if names := ", ".join(np.array(self.class_names)[~is_found]):
                print(f"{names}: {line}", flush=True)

    def _label(self, row: Row) -> tuple[float, ...]:
        if self._columns != ["labels"]:
            values = {"": np.nan, "0": 0.0, "1": 1.0}
            return tuple(values[text] for text in row["label"].split(";"))
        given = {self._number(name, row) for name in _split_names(row["label"])}
        return tuple(float(number in given) for number in range(len(self.class_names)))


def _split_names(text: str | None) -> set[str]:
    return {name.strip() for name in (text or "").split(";")} - {""}


def read_rows(path: str, columns: Sequence[str] = COLUMNS) -> list[Row]:
    """Returns the rows of a table as texts.

    Args:
      path: a .csv or .parquet file.
      columns: the columns to read: a file, what it has, and its split.

    Raises:
      InputError: a column is missing or no text, a field is empty, or there are no rows.
    """
    table = _load(path, "labels")
    if any(table.column_names.count(name) != 1 for name in columns):
        names = table.column_names
        raise invalid(
            f"columns of {path!r}", ", ".join(columns), names, _comma_hint(names)
        )
    rows = _as_texts(table, path, columns).to_pylist()
    for number, row in enumerate(rows, start=1):
        row.update({name: text or "" for name, text in row.items()})
        if not all(map(str.strip, row.values())):
            raise invalid(
                f"row {number} of {path!r}",
                f"a {columns[0]}, a {columns[1]} and a split",
                row,
            )
    if not rows:
        raise invalid(f"rows of {path!r}", "one or more", 0)
    return rows


def _comma_hint(names: list[str]) -> str:
    return "separated by commas, not by semicolons" if ";" in "".join(names) else ""


def read_files(path: str, split: str) -> list[str]:
    """Returns the files in a table to predict, of which only the column `file` is needed.

    With a column `split`, they are those of one split. `InputError` where there are none.
    """
    table = _load(path, "data")
    if table.column_names.count("file") != 1:
        raise invalid(
            f"columns of {path!r}", "with one that is named file", table.column_names
        )
    rows = _as_texts(table, path).to_pylist()
    files = [
        row["file"] for row in rows if row["file"] and row.get("split", split) == split
    ]
    if not files:
        raise invalid("split", f"one with files in {path!r}", split)
    return files


def _load(path: str, name: str) -> pyarrow.Table:
    """Returns the table in the file that an argument names, with heads without outer spaces."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in READERS or not os.path.isfile(path):
        hint = "its path begins at the current folder, not at the data_dir"
        hint = "" if os.path.isabs(path) else hint
        raise invalid(name, "an existing .csv or .parquet file", path, hint)
    try:
        table = READERS[ending](path)
        return table.rename_columns(list(map(str.strip, table.column_names)))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        hint = f"{one_line(error)}; a spreadsheet has to save it as CSV in UTF-8"
        raise invalid(name, "a readable .csv or .parquet file", path, hint) from None


def _checked(rows: list[Row], path: str, root: str, recipe: Recipe) -> list[Row]:
    """Returns rows, labels and splits without outer spaces; `InputError` where two contradict each other."""
    evaluated = {recipe.eval_split, recipe.held_out_split} - {recipe.train_split}
    seen: dict[tuple[str, str], tuple[object, int]] = {}
    checked = []
    for number, row in enumerate(rows):
        file = os.path.normpath(os.path.join(root, row["file"]))
        label = row["label"].strip()
        split = row["split"].strip()
        checked.append({"file": row["file"], "label": label, "split": split})
        rule = "have labels that differ in more than outer spaces and Unicode form"
        claims: list[tuple[str, str, object]] = [
            ("have one label for a file", file, label),
            (rule, unicodedata.normalize("NFC", label), row["label"]),
        ]
        if split in evaluated or split == recipe.train_split:
            claims.append(
                (
                    "have a file for training or evaluation alone",
                    file,
                    split in evaluated,
                )
            )
        for rule, key, value in claims:
            other, first = seen.setdefault((rule, key), (value, number))
            if other != value:
                where = f"rows {first + 1} and {number + 1} of {path!r}"
                raise InputError(
                    f"{where} must {rule}, got {rows[first]!a} and {row!a}"
                )
    return checked


def _as_texts(
    table: pyarrow.Table, path: str, columns: Sequence[str] = COLUMNS
) -> pyarrow.Table:
    """Returns the columns as texts; `InputError` for other types, such as floats, whose NaN is no label."""
    table = table.select([name for name in columns if name in table.column_names])
    try:
        if not any(pyarrow.types.is_floating(column.type) for column in table.columns):
            return table.cast(
                pyarrow.schema([(name, TEXTS[name]) for name in table.column_names])
            )
    except pyarrow.ArrowException:
        pass
    types = {field.name: str(field.type) for field in table.schema}
    raise invalid(f"columns of {path!r}", "texts or integers", types)


def _in_order(labels: set[str]) -> list[str]:
    """Returns labels in the order of their values, if all are integers, or else of their names."""
    integers = all(label.isascii() and label.isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label) if integers else 0, label))
