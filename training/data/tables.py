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
import unicodedata

import pyarrow
from pyarrow import csv, parquet

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, invalid, one_line, unknown
from lambdanet.training.data.folder import PictureFiles

COLUMNS = ("file", "label", "split")


# Or "07" would become the number 7.
TEXTS = {name: pyarrow.string() for name in COLUMNS}


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
        self._table = os.path.expanduser(recipe.labels)
        self._root = os.path.expanduser(data_dir or os.path.dirname(self._table))
        self._rows = _checked(_read(self._table), self._table, self._root, recipe)
        self.class_names = _in_order(
            {row["label"] for row in self._split(recipe.train_split)}
        )
        if len(self.class_names) < 2:
            raise invalid(
                f"classes in {self._table!r}", "two or more labels", self.class_names
            )
        first = os.path.join(self._root, self._rows[0]["file"])
        if not os.path.isfile(first):
            raise invalid(
                f"first file in {self._table!r}", "a picture below the data_dir", first
            )

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        numbers = {name: number for number, name in enumerate(self.class_names)}
        rows = self._split(split)
        for row in rows:
            if row["label"] not in numbers:
                raise unknown(
                    f"label of {row['file']!r} in {self._table!r}",
                    row["label"],
                    self.class_names,
                )
        paths = [os.fsencode(os.path.join(self._root, row["file"])) for row in rows]
        return paths, [numbers[row["label"]] for row in rows]

    def _split(self, split: str) -> list[dict[str, str]]:
        rows = [row for row in self._rows if row["split"] == split]
        if not rows:
            raise unknown(
                f"split in {self._table!r}:",
                split,
                {row["split"] for row in self._rows},
            )
        return rows


def _read(path: str) -> list[dict[str, str]]:
    """Returns the rows of a table as texts; `InputError` where it has other columns, or empty fields."""
    table = _load(path, "labels")
    if any(table.column_names.count(name) != 1 for name in COLUMNS):
        hint = (
            "separated by commas, not by semicolons"
            if ";" in "".join(table.column_names)
            else ""
        )
        raise invalid(
            f"columns of {path!r}", ", ".join(COLUMNS), table.column_names, hint
        )
    rows = _as_texts(table, path).to_pylist()
    for number, row in enumerate(rows, start=1):
        row.update({name: text or "" for name, text in row.items()})
        if not all(map(str.strip, row.values())):
            raise invalid(
                f"row {number} of {path!r}", "a file, a label and a split", row
            )
    if not rows:
        raise invalid(f"rows of {path!r}", "one or more", 0)
    return rows


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
    """Returns the table in the file that an argument names."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in READERS or not os.path.isfile(path):
        hint = "its path begins at the current folder, not at the data_dir"
        hint = "" if os.path.isabs(path) else hint
        raise invalid(name, "an existing .csv or .parquet file", path, hint)
    try:
        return READERS[ending](path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        hint = f"{one_line(error)}; a spreadsheet has to save it as CSV in UTF-8"
        raise invalid(name, "a readable .csv or .parquet file", path, hint) from None


def _checked(
    rows: list[dict[str, str]], path: str, root: str, recipe: Recipe
) -> list[dict[str, str]]:
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


def _as_texts(table: pyarrow.Table, path: str) -> pyarrow.Table:
    """Returns the columns as texts; `InputError` for other types, such as floats, whose NaN is no label."""
    table = table.select([name for name in COLUMNS if name in table.column_names])
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
