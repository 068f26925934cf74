# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder` in a table, a csv or parquet file with three columns.

    file,label,split
    a/1.jpg,cat,train
    b/7.png,dog,validation

The paths in it are relative to the data_dir or, without one, to the folder of the table. The classes are the
labels of the training split, in the order of their names, or of their values if all are integers. Rows may be
repeated, but a file has one label, and is not both in the splits of training and evaluation.
"""

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
from lambdanet.core.errors import InputError, invalid, one_line, unknown
from lambdanet.training.data.sources import Row, RowSource

COLUMNS = ("file", "label", "split")
Texts = dict[str, str]  # of a row, by column


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


class TableSource(RowSource):
    """The pictures in the table `labels` of a recipe, in `data_dir` or beside it; a `sources.Source`.

    `InputError` for a table that cannot be read, has other columns, contradictory rows, or less than two
    classes, or whose first picture does not exist.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        path, root = find_table(recipe, data_dir)
        rows = rows_of_table(self._read(path), path, root, recipe)
        super().__init__(recipe, path, root, rows)
        self.class_names = self._find_classes(self.select(recipe.train_split))
        self._numbers = {name: at for at, name in enumerate(self.class_names)}
        self.check_listed()

    def label_of(self, row: Row) -> Any:
        return self._number(row.label, row)

    def _read(self, path: str) -> list[Texts]:
        return read_rows(path)

    def _find_classes(self, rows: list[Row]) -> list[str]:
        """Returns the names of the classes, of the rows of training."""
        return _in_order({row.label for row in rows})

    def _number(self, name: str, row: Row) -> int:
        """Returns the number of a class; `InputError` where there is none of that name."""
        if name not in self._numbers:
            where = f"label of {row.picture!r} in {self._path!r}"
            raise unknown(where, name, self.class_names)
        return self._numbers[name]


class MultilabelTable(TableSource):
    """The pictures in a table with any number of classes for each; a `sources.Source`.

    Beside `file` and `split`, it has a column `labels` with names between semicolons, or a column for each
    class, with 1, 0 or nothing: unknown. Errors as of `TableSource`.
    """

    label_type = tf.float32

    def label_of(self, row: Row) -> tuple[float, ...]:
        if self._columns != ["labels"]:
            values = {"": np.nan, "0": 0.0, "1": 1.0}
            return tuple(values[text] for text in row.label.split(";"))
        given = {self._number(name, row) for name in _split_names(row.label)}
        return tuple(float(number in given) for number in range(len(self.class_names)))

    def _read(self, path: str) -> list[Texts]:
        table = _load(path, "labels")
        names = table.column_names
        self._columns = [name for name in names if name not in ("file", "split")]
        has_columns = {"file", "split"} <= set(names) and len(set(names)) == len(names)
        has_columns &= set(INDEX).isdisjoint(names)
        if not has_columns or ("labels" in names and len(names) > 3):
            accepted = "file, split, and either labels or one for each class, and no index of pandas"
            raise invalid(f"columns of {path!r}", accepted, names, _comma_hint(names))
        values = table.select(self._columns).to_pylist()
        texts = [name for name in names if name in ("file", "split", "labels")]
        rows = as_texts(table, path, texts).to_pylist()
        for number, row in enumerate(rows, start=1):
            where = f"row {number} of {path!r}"
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
                {name for row in rows for name in _split_names(row.label)}
            )
            parts = re.split(SEPARATORS, ";".join(names).casefold())
            counts = Counter(map(str.strip, parts))
            del counts[""]
            for part, count in counts.most_common(1):
                if count > 1:
                    print(
                        f"{count} classes in {self._path} have the part {part!r}: names are separated by "
                        "semicolons, and each has one spelling",
                        flush=True,
                    )
        print(f"{len(names)} classes in {self._path}: {', '.join(names)}", flush=True)
        return names

    def check_readable(self, split: str) -> None:
        """Prints the classes that all or no pictures have; `InputError` where these are all classes."""
        super().check_readable(split)
        labels = np.array([row.label for row in self.rows(split)])
        for value, kind in (
            (1, "present"),
            (0, "absent (0; an empty field is unknown)"),
        ):
            is_found = np.any(labels == value, axis=0)
            line = f"{kind} in no picture of {split!r} in {self._path!r}"
            if not is_found.any():
                raise InputError(f"all classes are {line}")
            if names := ", ".join(np.array(self.class_names)[~is_found]):
                print(f"{names}: {line}", flush=True)


def find_table(recipe: Recipe, data_dir: str | None) -> tuple[str, str]:
    """Returns the path of the recipe's table, and the folder that the paths in it are relative to.

    Without `labels`, both are the data_dir.
    """
    path = os.path.expanduser(recipe.labels or data_dir or "")
    return path, os.path.expanduser(data_dir or os.path.dirname(path))


def _split_names(text: str | None) -> set[str]:
    return {name.strip() for name in (text or "").split(";")} - {""}


def read_rows(path: str, columns: Sequence[str] = COLUMNS) -> list[Texts]:
    """Returns the rows of a table as texts.

    Args:
      path: a .csv or .parquet file.
      columns: the columns to read: a file, what it has, and its split.

    Raises:
      InputError: a column is missing or no text, or a field is empty.
    """
    table = _load(path, "labels")
    if any(table.column_names.count(name) != 1 for name in columns):
        names = table.column_names
        raise invalid(
            f"columns of {path!r}", ", ".join(columns), names, _comma_hint(names)
        )
    rows = as_texts(table, path, columns).to_pylist()
    for number, row in enumerate(rows, start=1):
        row.update({name: text or "" for name, text in row.items()})
        if not all(map(str.strip, row.values())):
            raise invalid(
                f"row {number} of {path!r}",
                f"a {columns[0]}, a {columns[1]} and a split",
                row,
            )
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
    rows = as_texts(table, path).to_pylist()
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


def rows_of_table(
    texts: list[Texts], path: str, root: str, recipe: Recipe
) -> list[Row]:
    """Returns rows without outer spaces in labels and splits; `InputError` for none, or two that contradict.

    Args:
      texts: the `file`, `label` and `split` of each row.
      path: the path of the table, for messages.
      root: the folder of the files.
      recipe: the splits of training and evaluation.
    """
    if not texts:
        raise invalid(f"rows of {path!r}", "one or more", 0)
    seen: dict[tuple[str, str], tuple[object, int]] = {}

    def check(rule: str, key: str, value: object, number: int) -> None:
        """Refuses what a row says of a file or label where one before it says something else."""
        other, first = seen.setdefault((rule, key), (value, number))
        if other != value:
            where = f"rows {first + 1} and {number + 1} of {path!r}"
            raise InputError(
                f"{where} must {rule}, got {texts[first]!a} and {texts[number]!a}"
            )

    evaluated = {recipe.eval_split, recipe.held_out_split} - {recipe.train_split}
    rows = []
    for number, row in enumerate(texts):
        file = os.path.normpath(os.path.join(root, row["file"]))
        label = row["label"].strip()
        split = row["split"].strip()
        rows.append(Row(row["file"], label, split))
        check("have one label for a file", file, label, number)
        check(
            "have labels that differ in more than outer spaces and Unicode form",
            unicodedata.normalize("NFC", label),
            row["label"],
            number,
        )
        if split in evaluated or split == recipe.train_split:
            check(
                "have a file for training or evaluation alone",
                file,
                split in evaluated,
                number,
            )
    return rows


def as_texts(
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
