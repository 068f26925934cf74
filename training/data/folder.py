# SPDX-License-Identifier: Apache-2.0
"""Labeled pictures of the dataset `folder`, in class folders or in a table.

    PICTURES/train/cat/*.jpg    PICTURES/validation/cat/*.jpg
    PICTURES/train/dog/*.jpg    PICTURES/validation/dog/*.jpg

The top folders are the splits, and the folders in `train` are the classes, in the order of their names. A
class may have nested folders. Files without one of the `ENDINGS`, and what systems make, are named and left
out; hidden ones are ignored. Without any folder but `train`, one of five pictures of each class, in the order
of their names, is for evaluation, and the others are for training.

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
from collections.abc import Sequence

import pyarrow
import tensorflow as tf
from pyarrow import csv, parquet

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_known, invalid, one_line, unknown
from lambdanet.training.data.bad_records import is_of_system
from lambdanet.training.data.class_names import normalized
from lambdanet.training.data.image_bytes import Encoded, is_decodable
from lambdanet.training.data.image_files import (
    ENDINGS,
    as_decodable,
    find_pictures,
    read_image,
)
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard, Source

NAME = "folder"
LAYOUT = "train/CLASS/*.jpg and validation/CLASS/*.jpg"
# One of five pictures is for evaluation where there is no folder for it.
HELD_OUT_STRIDE = 5
COLUMNS = ("file", "label", "split")
# Or "07" would become the number 7.
TEXTS = {name: pyarrow.string() for name in COLUMNS}
READERS = {
    ".csv": lambda path: csv.read_csv(
        path, convert_options=csv.ConvertOptions(column_types=TEXTS)
    ),
    ".parquet": parquet.read_table,
}


class PictureFiles(Source):
    """Picture files of any size with a class each: what a `sources.Source` does with their list."""

    def __init__(self, recipe: Recipe) -> None:
        self.channels = 1 if len(recipe.mean) == 1 else 3
        self._files = functools.cache(self._list_files)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return len(self._files(split)[0][shard.index :: shard.count])

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        paths, labels = (
            fields[shard.index :: shard.count] for fields in self._files(split)
        )
        examples = tf.data.Dataset.from_tensor_slices(
            {"name": paths, "label": tf.constant(labels, tf.int64)}
        )
        if seed is not None:
            examples = examples.shuffle(
                len(paths), seed=seed, reshuffle_each_iteration=False
            )
        return examples.skip(tf.cast(first, tf.int64))

    def label(self, example: dict[str, tf.Tensor]) -> tf.Tensor:
        return example["label"]

    def image(self, example: dict[str, tf.Tensor]) -> Encoded:
        contents = tf.io.read_file(example["name"])

        def as_png() -> tf.Tensor:
            return tf.ensure_shape(
                tf.numpy_function(as_decodable, [contents], tf.string), []
            )

        return Encoded(
            tf.cond(is_decodable(contents), lambda: contents, as_png), self.channels
        )

    def check_readable(self, split: str) -> None:
        for path in map(os.fsdecode, self._files(split)[0]):
            try:
                read_image(path)
                return
            except InputError as error:
                problem = error
        raise InputError(
            f"no picture of split {split!r} can be read; the last: {problem}"
        )

    def files(self, split: str) -> list[tuple[str, int]]:
        paths, labels = self._files(split)
        return list(zip(map(os.fsdecode, paths), labels, strict=True))

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the paths of the pictures of a split, in order, and their labels."""
        raise NotImplementedError


class FolderSource(PictureFiles):
    """Pictures of any size in `data_dir/SPLIT/CLASS/`; a `sources.Source`. Each folder is listed once.

    `InputError` where there is no such folder, or the recipe's `train_split` in it has less than two classes.
    """

    def __init__(self, recipe: Recipe, data_dir: str | None):
        super().__init__(recipe)
        accepted = f"the folder of the pictures, with {LAYOUT}"
        if data_dir is None or not os.path.isdir(os.path.expanduser(data_dir)):
            raise invalid("data_dir", accepted, data_dir)
        self._root = os.path.expanduser(data_dir)
        self._splits = _folders(self._root)
        if not self._splits:
            raise invalid("data_dir", accepted, data_dir, "it has no folders")
        self._every = functools.cache(self._all_pictures)
        self._pictures = functools.cache(self._find_pictures)
        self._train = recipe.train_split
        self._eval = recipe.eval_split
        train = self._split_folder(self._train)
        self.class_names = _folders(train)
        hint = _nearest_data_dir(train, self._train)
        if self._train in self.class_names and hint:
            raise invalid(
                "data_dir", f"the folder with {self._train!r}", data_dir, hint
            )
        if len(self.class_names) < 2:
            raise invalid(
                f"classes in {train!r}", "two or more folders", self.class_names, hint
            )
        if len(set(normalized(self.class_names))) < len(self.class_names):
            accepted = "folders that differ in more than Unicode form"
            raise invalid(f"classes in {train!r}", accepted, self.class_names)

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        split = self._train if self._is_made(split) else split
        found = self._pictures(split)
        left_out = [
            (folder, others, len(paths) + len(others))
            for folder, paths, others in found
        ]
        root = self._split_folder(split)
        names = os.listdir(root)
        of_system = [
            os.path.join(root, name) for name in sorted(names) if is_of_system(name)
        ]
        return [*left_out, (root, of_system, len(names))]

    def hold_out(self, names: Sequence[str]) -> None:
        """Holds out these; or some of each class, where no folder but that of training has a class."""
        if self._eval in self._splits:
            return
        if not any(os.path.exists(os.path.join(self._root, name)) for name in names):
            names = self._some_of_each_class()
        self.held_out = names

    def _some_of_each_class(self) -> list[str]:
        classes = set(normalized(self.class_names))
        for split in self._splits:
            folders = _folders(os.path.join(self._root, split))
            if split != self._train and classes.intersection(normalized(folders)):
                return []
        return [
            os.path.relpath(path, self._root)
            for _, pictures, _ in self._every(self._train)
            for path in held_out(pictures)
        ]

    def _split_folder(self, split: str) -> str:
        if split == self._train and split not in self._splits:
            if hint := _nearest_data_dir(self._root, self._train):
                raise invalid(
                    "data_dir", f"the folder with {split!r}", self._root, hint
                )
            only = self._splits[0]
            if (
                len(self._splits) == 1
                and len(_folders(os.path.join(self._root, only))) > 1
            ):
                accepted = f"a folder in {self._root!r}"
                raise invalid(
                    "train_split",
                    accepted,
                    split,
                    f"--set=train_split={only} takes its folders",
                )
            problem = unknown(f"split in {self._root!r}:", split, self._splits)
            wanted = os.path.join(self._root, split)
            raise InputError(
                f"{problem}; if these are the classes, put them into {wanted!r}"
            )
        check_known(f"split in {self._root!r}:", split, self._splits)
        return os.path.join(self._root, split)

    def _list_files(self, split: str) -> tuple[list[bytes], list[int]]:
        """Returns the pictures of a split, in order, and their labels."""
        paths: list[bytes] = []
        labels: list[int] = []
        for label, (folder, pictures, others) in enumerate(self._pictures(split)):
            if others and not pictures:
                raise invalid(
                    f"pictures in {folder!r}",
                    f"names that end in {', '.join(ENDINGS)}",
                    others[0],
                )
            if not pictures and split == self._train:
                hint = "remove the folder, or put pictures in it"
                raise invalid(
                    f"class {self.class_names[label]!r}",
                    "one with pictures",
                    folder,
                    hint,
                )
            paths += map(os.fsencode, pictures)
            labels += [label] * len(pictures)
        return paths, labels

    def _is_made(self, split: str) -> bool:
        """Returns whether a split is made of pictures of training, as there is no folder for it."""
        return split == self._eval and len(self.held_out) > 0

    def _find_pictures(self, split: str) -> list[tuple[str, list[str], list[str]]]:
        """Returns the folder of each class in a split, its pictures, and its other files."""
        is_made = self._is_made(split)
        every = self._every(self._train if is_made else split)
        held = {os.path.join(self._root, name) for name in self.held_out}
        found = []
        for folder, pictures, others in every:
            kept = [path for path in pictures if (path in held) == is_made]
            found.append((folder, kept, [] if is_made else others))
        if is_made:
            total = sum(len(pictures) for _, pictures, _ in every)
            number = sum(len(pictures) for _, pictures, _ in found)
            print(
                f"no folder {split!r} in {self._root!r}: {split} is {number} of {total} pictures of "
                f"{self._train}, some of each class",
                flush=True,
            )
        return found

    def _all_pictures(self, split: str) -> list[tuple[str, list[str], list[str]]]:
        """Returns the same without the split that is made of the pictures for training."""
        root = self._split_folder(split)
        names = _folders(root)
        folders = dict(zip(normalized(names), names, strict=True))
        classes = dict(zip(normalized(self.class_names), self.class_names, strict=True))
        for form, name in folders.items():
            if form not in classes:
                raise unknown(f"class in {root!r}", name, self.class_names)
        found: list[tuple[str, list[str], list[str]]] = []
        for form, name in classes.items():
            path = os.path.join(root, folders.get(form, name))
            found.append(
                (path, *(find_pictures(path) if form in folders else ([], [])))
            )
        return found


def _folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(
        name for name in names if not name.startswith(".") and not is_of_system(name)
    )


def held_out(pictures: list[str]) -> list[str]:
    """Returns the pictures of a class that are held out where there is no folder for evaluation.

    One of `HELD_OUT_STRIDE` by their order, the last where there are fewer, and none of a single picture.
    """
    few = pictures[1:][-1:]
    return pictures[HELD_OUT_STRIDE - 1 :: HELD_OUT_STRIDE] or few


def _nearest_data_dir(root: str, split: str) -> str:
    """Returns a hint on the folder above or below that has a folder of the split's name with classes."""
    root = os.path.abspath(root)
    for folder in (
        os.path.dirname(root),
        root,
        *(os.path.join(root, name) for name in _folders(root)),
    ):
        classes = os.path.join(folder, split)
        names = _folders(classes) if os.path.isdir(classes) else []
        if len(names) > 1 and split not in names:
            return f"--data_dir={folder} has {split!r}"
    return ""


def open_pictures(recipe: Recipe, data_dir: str | None) -> PictureFiles:
    """Returns the pictures of the dataset `folder`: from the table in `labels`, or from class folders."""
    return (TableSource if recipe.labels else FolderSource)(recipe, data_dir)


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
