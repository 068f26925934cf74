# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder`, in class folders or in a table.

    PICTURES/train/cat/*.jpg    PICTURES/validation/cat/*.jpg
    PICTURES/train/dog/*.jpg    PICTURES/validation/dog/*.jpg

The top folders are the splits, and the folders in `train` are the classes, in the order of their names. A
class may have nested folders. Files without one of the `ENDINGS` are named and left out; hidden ones are
ignored.

A table is a csv or parquet file with the columns file, label and split:

    file,label,split
    a/1.jpg,cat,train
    b/7.png,dog,validation

The paths in it are relative to the data_dir or, without one, to the folder of the table. The classes are the
labels of the training split, in the order of their names, or of their values if all are integers. Rows may be
repeated, but a file has one label, and is not both in the splits of training and evaluation.
"""

import functools
import os
import unicodedata

import pyarrow
import tensorflow as tf
from pyarrow import csv, parquet

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_known, invalid, one_line, unknown
from lambdanet.training.data.image_bytes import Encoded, is_decodable
from lambdanet.training.data.image_files import ENDINGS, as_decodable, find_pictures
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard, Source

NAME = "folder"
LAYOUT = "train/CLASS/*.jpg and validation/CLASS/*.jpg"
COLUMNS = ("file", "label", "split")
TEXTS = {name: pyarrow.string() for name in COLUMNS}  # or "07" would become the number 7
READERS = {
    ".csv": lambda path: csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=TEXTS)),
    ".parquet": parquet.read_table,
}


class PictureFiles(Source):
    """Picture files of any size with a class each: what a `sources.Source` does with their list."""

    channels = 3  # red, green and blue

    def __init__(self) -> None:
        self._files = functools.cache(self._list_files)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return len(self._files(split)[0][shard.index :: shard.count])

    def examples(
        self, split: str, seed: tf.Tensor | None, shard: Shard = SINGLE_MACHINE, first: tf.Tensor | int = 0
    ) -> tf.data.Dataset:
        paths, labels = (fields[shard.index :: shard.count] for fields in self._files(split))
        examples = tf.data.Dataset.from_tensor_slices({"name": paths, "label": tf.constant(labels, tf.int64)})
        if seed is not None:
            examples = examples.shuffle(len(paths), seed=seed, reshuffle_each_iteration=False)
        return examples.skip(tf.cast(first, tf.int64))

    def label(self, example: dict[str, tf.Tensor]) -> tf.Tensor:
        return example["label"]

    def image(self, example: dict[str, tf.Tensor]) -> Encoded:
        contents = tf.io.read_file(example["name"])

        def as_png() -> tf.Tensor:
            return tf.ensure_shape(tf.numpy_function(as_decodable, [contents], tf.string), [])

        return Encoded(tf.cond(is_decodable(contents), lambda: contents, as_png), self.channels)

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the paths of the pictures of a split, in order, and their labels."""
        raise NotImplementedError


class FolderSource(PictureFiles):
    """Pictures of any size in `data_dir/SPLIT/CLASS/`; a `sources.Source`. Each folder is listed once.

    `InputError` where there is no such folder, or the recipe's `train_split` in it has less than two classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        super().__init__()
        accepted = f"the folder of the pictures, with {LAYOUT}"
        if data_dir is None or not os.path.isdir(os.path.expanduser(data_dir)):
            raise invalid("data_dir", accepted, data_dir)
        self._root = os.path.expanduser(data_dir)
        self._splits = _folders(self._root)
        if not self._splits:
            raise invalid("data_dir", accepted, data_dir, "it has no folders")
        self._pictures = functools.cache(self._find_pictures)
        train = self._split_folder(recipe.train_split)
        self.class_names = _folders(train)
        if len(self.class_names) < 2:
            raise invalid(f"classes in {train!r}", "two or more folders", self.class_names)

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        found = self._pictures(split)
        return [(folder, others, len(paths) + len(others)) for folder, paths, others in found]

    def _split_folder(self, split: str) -> str:
        check_known(f"split in {self._root!r}:", split, self._splits)
        return os.path.join(self._root, split)

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the pictures of a split, in order, and their labels."""
        paths: list[bytes] = []
        labels: list[int] = []
        for label, (folder, pictures, others) in enumerate(self._pictures(split)):
            if others and not pictures:
                raise invalid(f"pictures in {folder!r}", f"names that end in {', '.join(ENDINGS)}", others[0])
            paths += map(os.fsencode, pictures)
            labels += [label] * len(pictures)
        return paths, labels

    def _find_pictures(self, split: str) -> list[tuple[str, list[str], list[str]]]:
        """Returns the folder of each class in a split, its pictures, and its other files."""
        root = self._split_folder(split)
        found = _folders(root)
        for name in found:
            if name not in self.class_names:
                raise unknown(f"class in {root!r}", name, self.class_names)
        folders = [(name, os.path.join(root, name)) for name in self.class_names]
        return [(path, *(find_pictures(path) if name in found else ([], []))) for name, path in folders]


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def open_pictures(recipe: Recipe, data_dir: str | None) -> PictureFiles:
    """Returns the pictures of the dataset `folder`: from the table in `labels`, or from class folders."""
    return (TableSource if recipe.labels else FolderSource)(recipe, data_dir)


class TableSource(PictureFiles):
    """The pictures in the table `labels` of a recipe, in `data_dir` or beside it; a `sources.Source`.

    `InputError` for a table that cannot be read, has other columns, contradictory rows, or less than two
    classes, or whose first picture does not exist.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        super().__init__()
        self._table = os.path.expanduser(recipe.labels)
        self._root = os.path.expanduser(data_dir or os.path.dirname(self._table))
        self._rows = _checked(_read(self._table), self._table, self._root, recipe)
        self.class_names = _in_order({row["label"] for row in self._split(recipe.train_split)})
        if len(self.class_names) < 2:
            raise invalid(f"classes in {self._table!r}", "two or more labels", self.class_names)
        first = os.path.join(self._root, self._rows[0]["file"])
        if not os.path.isfile(first):
            raise invalid(f"first file in {self._table!r}", "a picture below the data_dir", first)

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        numbers = {name: number for number, name in enumerate(self.class_names)}
        rows = self._split(split)
        for row in rows:
            if row["label"] not in numbers:
                raise unknown(f"label of {row['file']!r} in {self._table!r}", row["label"], self.class_names)
        paths = [os.fsencode(os.path.join(self._root, row["file"])) for row in rows]
        return paths, [numbers[row["label"]] for row in rows]

    def _split(self, split: str) -> list[dict[str, str]]:
        rows = [row for row in self._rows if row["split"] == split]
        if not rows:
            raise unknown(f"split in {self._table!r}:", split, {row["split"] for row in self._rows})
        return rows


def _read(path: str) -> list[dict[str, str]]:
    """Returns the rows of a table as texts; `InputError` where it has other columns, or empty fields."""
    table = _load(path, "labels")
    if any(table.column_names.count(name) != 1 for name in COLUMNS):
        raise invalid(f"columns of {path!r}", ", ".join(COLUMNS), table.column_names)
    rows = [{name: row[name] or "" for name in COLUMNS} for row in _as_texts(table, path).to_pylist()]
    for number, row in enumerate(rows, start=1):
        if not all(map(str.strip, row.values())):
            raise invalid(f"row {number} of {path!r}", "a file, a label and a split", row)
    if not rows:
        raise invalid(f"rows of {path!r}", "one or more", 0)
    return rows


def read_files(path: str, split: str) -> list[str]:
    """Returns the files in a table to predict, of which only the column `file` is needed.

    With a column `split`, they are those of one split. `InputError` where there are none.
    """
    table = _load(path, "data")
    if table.column_names.count("file") != 1:
        raise invalid(f"columns of {path!r}", "with one that is named file", table.column_names)
    rows = _as_texts(table, path).to_pylist()
    files = [row["file"] for row in rows if row["file"] and row.get("split", split) == split]
    if not files:
        raise invalid("split", f"one with files in {path!r}", split)
    return files


def _load(path: str, name: str) -> pyarrow.Table:
    """Returns the table in the file that an argument names."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in READERS or not os.path.isfile(path):
        hint = "its path begins at the current folder, not at the data_dir"
        raise invalid(name, "an existing .csv or .parquet file", path, hint)
    try:
        return READERS[ending](path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise invalid(name, "a readable .csv or .parquet file", path, one_line(error)) from None


def _checked(rows: list[dict[str, str]], path: str, root: str, recipe: Recipe) -> list[dict[str, str]]:
    """Returns rows, labels and splits without outer spaces; `InputError` where two contradict each other."""
    evaluated = {recipe.eval_split, recipe.held_out_split} - {recipe.train_split}
    seen: dict[tuple[str, str], tuple[object, int]] = {}
    for number, row in enumerate(rows):
        file, label, split = os.path.join(root, row["file"]), row["label"].strip(), row["split"].strip()
        file = os.path.normpath(file)
        form = unicodedata.normalize("NFC", label)
        claims: list[tuple[str, str, object]] = [("have one label for a file", file, label)]
        rule = "have labels that differ in more than outer spaces and Unicode form"
        claims.append((rule, form, row["label"]))
        if split in evaluated or split == recipe.train_split:
            claims.append(("have a file for training or evaluation alone", file, split in evaluated))
        for rule, key, value in claims:
            other, first = seen.setdefault((rule, key), (value, number))
            if other != value:
                where = f"rows {first + 1} and {number + 1} of {path!r}"
                raise InputError(f"{where} must {rule}, got {rows[first]!a} and {row!a}")
    return [row | {name: row[name].strip() for name in ("label", "split")} for row in rows]


def _as_texts(table: pyarrow.Table, path: str) -> pyarrow.Table:
    """Returns the columns as texts; `InputError` for other types, such as floats, whose NaN is no label."""
    table = table.select([name for name in COLUMNS if name in table.column_names])
    try:
        if not any(pyarrow.types.is_floating(column.type) for column in table.columns):
            return table.cast(pyarrow.schema([(name, TEXTS[name]) for name in table.column_names]))
    except pyarrow.ArrowException:
        pass
    types = {field.name: str(field.type) for field in table.schema}
    raise invalid(f"columns of {path!r}", "texts or integers", types)


def _in_order(labels: set[str]) -> list[str]:
    """Returns labels in the order of their values, if all are integers, or else of their names."""
    integers = all(label.isascii() and label.isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label) if integers else 0, label))
