# SPDX-License-Identifier: Apache-2.0
"""Tables of labeled pictures: the same images as in class folders, and tables that cannot be used."""

import csv
import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest
from helpers import noise
from PIL import Image
from pyarrow import parquet

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.folder import TableSource, _in_order

SMALL = {
    "input_size": 8,
    "global_batch_size": 2,
    "epochs": 2,
    "warmup_epochs": 0,
    "randaugment_layers": 0,
}
RECIPE = dataclasses.replace(configs.get_recipe("folder"), **SMALL)
ROWS = [
    (f"{split}/{name}/{number}.png", name, split)
    for split, name, number in itertools.product(
        ("train", "validation"), ("cat", "dog"), range(2)
    )
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with the pictures in class folders."""
    root = tmp_path_factory.mktemp("pictures")
    for number, (file, _, _) in enumerate(ROWS):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.roll(noise(12, 10, 3), number)).save(root / file)
    return root


def _write(path, rows, columns=("file", "label", "split")):
    if path.suffix == ".parquet":
        records = [dict(zip(columns, row, strict=True)) for row in rows]
        parquet.write_table(pa.Table.from_pylist(records), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    return dataclasses.replace(RECIPE, labels=str(path))


def test_table_reads_what_class_folders_do(pictures, tmp_path):
    recipe = _write(tmp_path / "labels.csv", ROWS)
    folders, table = (
        Dataset.open(RECIPE, str(pictures)),
        Dataset.open(recipe, str(pictures)),
    )
    assert table.class_names == folders.class_names == ["cat", "dog"]
    assert table.steps_per_epoch == 2 and table.recipe.num_classes == 2
    for expected, got in [
        (folders.train(), table.train()),
        (folders.eval(), table.eval()),
    ]:
        for a, b in zip(
            expected.as_numpy_iterator(), got.as_numpy_iterator(), strict=True
        ):
            np.testing.assert_array_equal(a[0], b[0])
            np.testing.assert_array_equal(a[1], b[1])


def test_parquet_equals_csv(pictures, tmp_path):
    recipes = (_write(tmp_path / f"x.{end}", ROWS) for end in ("csv", "parquet"))
    first, second = (TableSource(recipe, str(pictures)) for recipe in recipes)
    for split in ("train", "validation"):
        assert first._files(split) == second._files(split)
    assert first._files("train")[1] == [0, 0, 1, 1]
    # Paths begin at the table.
    beside = Dataset.open(_write(pictures / "labels.csv", ROWS))
    assert beside.num_examples("train") == 4


def test_integer_labels_are_in_order_of_values(pictures, tmp_path):
    labels = ["010", "9", "010", "9", "9", "9", "010", "010"]
    rows = [
        (file, label, split)
        for (file, _, split), label in zip(ROWS, labels, strict=True)
    ]
    dataset = Dataset.open(_write(tmp_path / "labels.csv", rows), str(pictures))
    assert dataset.class_names == ["9", "010"]
    assert [int(label) for _, batch in dataset.eval() for label in batch] == [
        0,
        0,
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["01", "1"], ["01", "1"]),
        (["1", "01"], ["01", "1"]),
        (["\u0663", "10"], ["10", "\u0663"]),  # the first is 3 in Arabic digits
        (["cat ", " Cat"], ["Cat", "cat"]),
    ],
)
def test_order_of_classes_with_similar_labels(pictures, tmp_path, labels, names):
    rows = [
        (file, labels[name == "dog"], split) for file, name, split in [*ROWS, ROWS[0]]
    ]
    assert (
        Dataset.open(_write(tmp_path / "x.csv", rows), str(pictures)).class_names
        == names
    )


def test_order_of_classes_does_not_depend_on_sets():
    """Labels of one value come out of a set in an order that differs from process to process."""
    labels = [f"{'0' * zeros}7" for zeros in range(20)]
    assert _in_order(labels) == _in_order(labels[::-1]) == sorted(labels)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([1, 0], ["0", "1"]),
        ([b"cat", b"dog"], ["cat", "dog"]),
        ([True, False], ["false", "true"]),
    ],
)
def test_labels_of_parquet_may_have_other_types(pictures, tmp_path, labels, names):
    rows = [(file, labels[name == "dog"], split) for file, name, split in ROWS]
    assert (
        Dataset.open(_write(tmp_path / "x.parquet", rows), str(pictures)).class_names
        == names
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "file;label;split\na.png;cat;train\n",
            "must be file, label, split, got .*; separated by commas",
        ),
        (
            "file,label,split\na.png,K\xe4fer,train\n",
            "a readable .csv .*; a spreadsheet has to save it as",
        ),
    ],
)
def test_tables_of_a_spreadsheet_have_a_hint(pictures, tmp_path, content, message):
    path = tmp_path / "labels.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        Dataset.open(dataclasses.replace(RECIPE, labels=str(path)), str(pictures))


def test_labels_of_parquet_are_no_floats(pictures, tmp_path):
    recipe = _write(
        tmp_path / "x.parquet", [(file, float("nan"), split) for file, _, split in ROWS]
    )
    with pytest.raises(
        InputError,
        match="columns of .* must be texts or integers, got .*'label': 'double'",
    ):
        Dataset.open(recipe, str(pictures))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS[:2], *ROWS[4:]], r"classes in .* two or more labels, got \['cat'\]"),
        (
            [*ROWS, ("a.png", "cow", "validation")],
            "unknown label of 'a.png' in .* 'cow'",
        ),
        (
            [*ROWS, ("a.png", None, "train")],
            "row 9 of .* must be a file, a label and a split, got",
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
            [*ROWS, ("train/cat/1.png", "cat", "validation")],
            "rows 2 and 9 .* training or evaluation alone",
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
def test_tables_that_cannot_be_used(pictures, tmp_path, rows, message):
    rows = [(file.replace("DIR", str(pictures)), *rest) for file, *rest in rows]
    recipe = _write(tmp_path / "labels.csv", rows)
    with pytest.raises(InputError, match=message) as caught:
        Dataset.open(recipe, str(pictures)).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "columns", [("path", "label", "split"), ("file", "label", "split", "label")]
)
def test_other_columns_are_rejected(pictures, tmp_path, columns):
    rows = [row if len(columns) == 3 else (*row, 1) for row in ROWS]
    with pytest.raises(
        InputError, match="columns of '.*' must be file, label, split, got "
    ):
        Dataset.open(_write(tmp_path / "labels.csv", rows, columns), str(pictures))


@pytest.mark.parametrize("name", ["labels.txt", "none.csv", "a.parquet"])
def test_files_that_are_no_tables(pictures, tmp_path, name):
    if name != "none.csv":
        (tmp_path / name).write_bytes(b"PAR1")
    recipe = dataclasses.replace(RECIPE, labels=str(tmp_path / name))
    with pytest.raises(
        InputError, match="labels must be .* .csv or .parquet file, got"
    ) as caught:
        Dataset.open(recipe, str(pictures))
    assert "\n" not in str(caught.value)
