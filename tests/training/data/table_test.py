# SPDX-License-Identifier: Apache-2.0
"""Tables of labeled pictures: the same images as in class folders, and tables that cannot be used."""

import csv
import dataclasses
import itertools
import re
import shutil

import pyarrow as pa
import pytest
from helpers import assert_equal_batches, write_picture
from picture_sources import LEVELS, RECIPE
from pyarrow import parquet
from refusals import refused
from training_runs import check_said, open_dataset

from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.tables import _in_order

FOLDER = dataclasses.replace(
    RECIPE,
    dataset="folder",
    eval_split="validation",
    num_classes=0,
    global_batch_size=2,
)
ROWS = [
    (f"{split}/{name}/{number}.png", name, split)
    for split, name, number in itertools.product(
        ("train", "validation"), ("cat", "dog"), range(2)
    )
]
COLUMNS = ("file", "label", "split")
SEVERAL = {"task": "multilabel", "loss": "binary_cross_entropy"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with the pictures in class folders."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (file, _, _) in enumerate(ROWS):
        write_picture(root / file, [LEVELS * number] * 3)
    return root


def _write(path, rows, columns=COLUMNS):
    if path.suffix == ".parquet":
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    return dataclasses.replace(FOLDER, labels=str(path))


@pytest.mark.slow
def test_parquet_beside_pictures_reads_what_class_folders_do(pictures):
    folders = open_dataset(FOLDER, pictures)
    table = Dataset.open(_write(pictures / "labels.parquet", ROWS))
    assert table.class_names == folders.class_names == ["cat", "dog"]
    assert table.steps_per_epoch == 2 and table.recipe.num_classes == 2
    assert_equal_batches(table.train(), folders.train())
    assert_equal_batches(table.eval(), folders.eval())


def test_copy_under_another_name_is_named(pictures, tmp_path, capsys):
    """A repeated row is none, and a file that cannot be read is left to the run."""
    copy = shutil.copy(pictures / ROWS[0][0], tmp_path / "copy.png")
    rows = [*ROWS, ROWS[0], ("none.png", "cat", "train"), (copy, "cat", "validation")]
    open_dataset(_write(tmp_path / "x.csv", rows), pictures).check()
    line = capsys.readouterr().out
    assert line.startswith("2 pictures have two labels or are in two splits, such as ")
    assert repr(str(copy)) in line


@pytest.mark.parametrize(
    ("ending", "labels", "names"),
    [
        ("csv", ["010", "9"], ["9", "010"]),
        ("csv", ["1", "01"], ["01", "1"]),
        ("csv", ["\u0663", "10"], ["10", "\u0663"]),  # the first is 3 in Arabic digits
        ("csv", ["cat ", " Cat"], ["Cat", "cat"]),
        ("parquet", [1, 0], ["0", "1"]),
        ("parquet", [True, False], ["false", "true"]),
    ],
)
def test_order_and_types_of_labels(pictures, tmp_path, ending, labels, names):
    rows = [
        (file, labels[name == "dog"], split) for file, name, split in [*ROWS, ROWS[0]]
    ]
    recipe = _write(tmp_path / f"x.{ending}", rows)
    dataset = open_dataset(recipe, pictures)
    assert dataset.class_names == names
    assert [int(x) for _, batch in dataset.eval() for x in batch] == [1, 1, 0, 0]


def test_order_of_classes_does_not_depend_on_sets():
    """Labels of one value come out of a set in an order that differs from process to process."""
    labels = [f"{'0' * zeros}7" for zeros in range(20)]
    assert _in_order(labels) == _in_order(labels[::-1]) == sorted(labels)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.csv",
            "file;label;split\na.png;cat;train\n",
            "must be file, label, split, got .*; separated by commas",
        ),
        (
            "x.csv",
            "file,label,split\na.png,K\xe4fer,train\n",
            "a readable .csv .*; a spreadsheet has to save it as",
        ),
        (
            "x.csv",
            None,
            "labels must be an existing .csv or .parquet file, got '.*csv'$",
        ),
        ("x.parquet", "PAR1", "labels must be a readable .csv or .parquet file, got"),
    ],
)
def test_files_that_are_no_tables(pictures, tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with refused(message):
        open_dataset(FOLDER, pictures, labels=str(path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS[:2], *ROWS[4:]], r"classes in .* two or more labels, got \['cat'\]"),
        (
            [*ROWS, ("a.png", "cow", "validation")],
            "unknown label of 'a.png' in .* 'cow'",
        ),
        (
            [*ROWS, ("a.png", " ", "train")],
            "row 9 of .* must be a file, a label and a split, got",
        ),
        (
            [("none.png", *ROWS[0][1:]), *ROWS[1:]],
            "first file in .* a picture below the data_dir, got",
        ),
        (ROWS[:4], "unknown split in .* 'validation'; did you mean train"),
        ([], "rows of .* must be one or more, got 0"),
        (
            [*ROWS, ("train/./cat/0.png", "dog", "train")],
            "rows 1 and 9 .* one label .*'cat'.* and .*'dog'",
        ),
        (
            [*ROWS, ("DIR/train/cat/0.png", "cat", "validation ")],
            "rows 1 and 9 .* training or evaluation alone",
        ),
        (
            [*ROWS, ("a.png", "cat ", "train")],
            "rows 1 and 9 .* outer spaces .*, got .*'cat'.* and .*'cat '",
        ),
        (
            [("a.png", "caf\xe9", "train"), *ROWS, ("b.png", "cafe\u0301", "train")],
            r"rows 1 and 10 of .* Unicode form, got .*'caf\\xe9'.* and .*'cafe\\u0301'",
        ),
    ],
)
def test_rows_that_cannot_be_used(pictures, tmp_path, rows, message):
    rows = [(file.replace("DIR", str(pictures)), *rest) for file, *rest in rows]
    recipe = _write(tmp_path / "labels.csv", rows)
    with refused(message):
        open_dataset(recipe, pictures).check()


@pytest.mark.parametrize(
    ("name", "columns", "label", "message"),
    [
        ("x.csv", ("path", "label", "split"), "cat", "file, label, split, got"),
        ("x.csv", (*COLUMNS, "label"), "cat", "file, label, split, got"),
        ("x.parquet", COLUMNS, float("nan"), "texts or integers, .*'label': 'double'"),
    ],
)
def test_columns_that_cannot_be_used(pictures, tmp_path, name, columns, label, message):
    rows = [(file, label, split, label)[: len(columns)] for file, _, split in ROWS]
    with refused(f"columns of .* must be {message}"):
        open_dataset(_write(tmp_path / name, rows, columns), pictures)


def _open_several(path, root, columns, *fields):
    """Opens a table with some columns, each given for the two cats and dogs of training and validation."""
    rows = [
        (file, split, *values)
        for (file, _, split), *values in zip(ROWS, *fields, strict=True)
    ]
    columns = ("file", "split", *columns)
    return open_dataset(_write(path / "x.csv", rows, columns), root, **SEVERAL)


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        ("red,blue", "red", "2 classes in .* have the part 'red': names are separated"),
        ("red, blue", "blue | green", "2 classes in .* have the part 'blue'"),
        ("['red', 'blue']", "red", "2 classes in .* have the part 'red'"),
        ("RED", "red;blue", "2 classes in .* have the part 'red'"),
        ("red;blue;light red", "dark, red wine", ""),
    ],
)
def test_names_that_may_be_several_are_printed(
    pictures, tmp_path, capsys, first, second, line
):
    labels = [first, second] * 4
    _open_several(tmp_path, pictures, ["labels"], labels)
    said = capsys.readouterr().out
    assert re.search(line, said) and said.count("\n") == 1 + bool(line)


def test_spaces_around_heads_do_not_matter(pictures, tmp_path):
    """Also of labels that are numbers: 07 is another one than 7."""
    rows = [(file, "07" if name == "cat" else "7", split) for file, name, split in ROWS]
    recipe = _write(tmp_path / "x.csv", rows, (" file", "label ", " split "))
    assert open_dataset(recipe, pictures).class_names == ["07", "7"]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_index_of_pandas_is_no_class(pictures, tmp_path, name):
    values = [0, 1] * 4
    with refused("columns of .* must be .* and no index of pandas, got"):
        _open_several(tmp_path, pictures, [name, "cat", "dog"], *[values] * 3)


UNKNOWN = [1, ""] * 4
BOTH = [1, 0] * 4


@pytest.mark.parametrize(
    ("cat", "dog", "message"),
    [
        (BOTH, BOTH[::-1], "^$"),
        (BOTH, UNKNOWN, r"dog: absent \(0; .*\) in no picture of 'train'"),
        (BOTH, [0] * 5 + [1, 0, 1], "dog: present in no picture of 'train'"),
        (BOTH, [0, 1, 0, 1] + [""] * 4, "dog: present in no picture of 'validation'"),
        (UNKNOWN, UNKNOWN, r"all classes are absent \(0; .*\) in no picture of 'valid"),
        (
            [0] * 5 + [1, 0, 1],
            [0] * 8,
            "all classes are present in no picture of 'train'",
        ),
    ],
)
def test_labels_that_measure_nothing(pictures, tmp_path, capsys, cat, dog, message):
    dataset = _open_several(tmp_path, pictures, ["cat", "dog"], cat, dog)
    assert re.search(message, check_said(dataset, capsys))
