# SPDX-License-Identifier: Apache-2.0
"""Names of classes: reading, comparing, and refusing invalid ones before training."""

import dataclasses
import os
import unicodedata

import pytest
from helpers import write_picture
from refusals import refused
from refused_commands import assert_refused
from training_runs import open_dataset, recipe_with, write_run

from lambdanet import cli, configs
from lambdanet.configs.registry import pretrained_weights
from lambdanet.models.weights import trained_classes
from lambdanet.training.data import class_names, records
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import model_dir

BREAKS = [
    line[-1]
    for line in " ".join(map(chr, range(0x110000))).splitlines(keepends=True)[:-1]
]
RECIPE = recipe_with("folder", input_size=8, global_batch_size=2)


@pytest.mark.parametrize("name", ["dog\u2028".encode(), b"dog\xff", b" "])
def test_folder_with_invalid_class_name_is_rejected(tmp_path, capsys, name):
    text = os.fsdecode(name)
    for split in ("train", "validation"):
        for one in ("cat", text):
            write_picture(tmp_path / "pictures" / split / one / "1.png", (0, 0, 0))
    words = [f"--data_dir={tmp_path / 'pictures'}", f"--model_dir={tmp_path / 'run'}"]
    assert cli.main(["train", "--recipe=folder", *words]) == 2
    said = f"of dataset folder must be a name of one line in UTF-8, got {text!r}\n"
    assert capsys.readouterr().err.endswith(said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "classes.txt",
            "cat\ndog\u2028wolf\n".encode(),
            r"class 1 of .* got 'dog\\u2028wolf'",
        ),
        ("classes.txt", b"cat\n\ndog\n", "class 1 of .* got ''"),
        ("classes.txt", b"cat\n\xff\n", "classes.txt' cannot be read: .*utf-8"),
        (
            "classes.txt",
            "Zo\u00eb\nZoe\u0308\n".encode(),
            r"classes.txt' must be different names, got \['Zo\u00eb'\]",
        ),
        ("manifest.json", b'{"classes": ["cat", 7]}', "class 1 of .* got 7"),
    ],
)
def test_records_with_invalid_class_names_are_rejected(
    tmp_path, file, content, message
):
    (tmp_path / records.shard_name("train", 0, 1)).touch()
    (tmp_path / file).write_bytes(content)
    recipe = dataclasses.replace(RECIPE, dataset="tfrecord")
    for classes in (None, class_names.Classes("a run", 2, ["cat", "dog"])):
        with refused(message):
            Dataset.open(recipe, str(tmp_path), classes=classes)


@pytest.mark.parametrize("dataset", ["folder", "tfrecord", "digits"])
def test_data_dir_not_in_utf8_is_rejected(tmp_path, dataset):
    data_dir = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(data_dir)
    with refused("data_dir must be a path in UTF-8, got .*udcff'"):
        open_dataset(RECIPE, data_dir, dataset=dataset)


def test_every_line_break_in_names_is_rejected():
    assert len(BREAKS) > 8
    for name in (name for end in BREAKS for name in (f"a{end}b", f"a{end}", f"{end}a")):
        with refused("class 1 of it must be a name of one line in UTF-8, got 'a?"):
            class_names.check_names(["plain", name], "it")
    class_names.check_names(["a", " b c", "Hausboot, groß", "猫", "'\"", "a\tb"], "it")


def test_read_names_one_per_line(tmp_path):
    file = tmp_path / "classes.txt"
    for content, names in [
        ("a\nb c\n", ["a", "b c"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\u2028b\x0b\n c\n", ["a\u2028b\x0b", " c"]),
        ("a\n\n\n", ["a"]),
        ("\ufeffa\nb\n", ["a", "b"]),
    ]:
        file.write_bytes(content.encode())
        assert class_names.read_names(file) == names


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("cat\n", "the data has 2 classes, .* has 1: 'dog' is new; another --model"),
        ("cat\ndog\nwolf\n", "class 2 of the data must be 'wolf', as in .* got None"),
        ("cat\nwolf\n", "class 1 of the data must be 'wolf', as in .* got 'dog'"),
        ("", "the data has 2 classes, .* has 1: 'cat' is new"),
    ],
)
def test_classes_other_than_in_model_dir_are_rejected(tmp_path, kept, message):
    names = ["cat", "dog"]
    model_dir.claim(tmp_path, RECIPE, names)
    model_dir.claim(tmp_path, RECIPE, names)
    (tmp_path / "classes.txt").write_text(kept)
    with refused(message):
        model_dir.check_class_names(tmp_path, names)
    with refused(message):
        model_dir.claim(tmp_path, RECIPE, names)


@pytest.mark.parametrize(
    ("own", "trained", "columns", "line"),
    [
        (["cat", "dog"], ["cat", "dog"], [0, 1], ""),
        (
            ["dog", "cat"],
            ["cat", "dog"],
            [1, 0],
            "data has the classes of run in another order: matched",
        ),
        (
            ["apple", "zebra"],
            ["cat", "dog"],
            [None, None],
            "run has other classes (cat, dog) than data",
        ),
        (
            ["dog", "wolf"],
            ["cat", "dog"],
            [1, None],
            "1 of 2 classes of data are in run (dog): the",
        ),
        (["Zoë"], [unicodedata.normalize("NFD", "Zoë")], [0], ""),
        (
            ["1", "2", "3"],
            ["0", "1", "2"],
            [1, 2, None],
            "2 of 3 classes of data are in run (1, 2): the",
        ),
        (
            ["0", "1"],
            ["cat", "dog"],
            [0, 1],
            "run: its 2 classes are taken as they are, without names",
        ),
        (
            ["cat", "dog"],
            [],
            [0, 1],
            "run: its 2 classes are taken as they are, without names",
        ),
        (
            ["cat", "dog", "wolf"],
            [],
            [None] * 3,
            "run has 2 classes, data has 3: the classifier starts with random weights",
        ),
    ],
)
def test_columns_of_classes(own, trained, columns, line):
    got = class_names.Classes("data", len(own) or 2, own).columns_in(
        class_names.Classes("run", len(trained) or 2, trained)
    )
    assert got[0] == columns
    assert line in got[1] and bool(line) == bool(got[1])


def test_class_map_of_timm_has_names_without_spaces_around(tmp_path):
    (tmp_path / "map.txt").write_text("cat \n big dog\n")
    assert class_names.read_class_map(tmp_path / "map.txt") == ["cat", "big dog"]


def test_names_in_metadata_that_are_no_list_are_rejected():
    for text in ("cat, dog", '{"0": "cat"}', "[1, 2]"):
        with refused("classes of the weights must be a list of names in JSON, got"):
            trained_classes.names_of({"classes": text})
    with refused(r"names of the weights must be different names, got \['cat'\]"):
        trained_classes.names_of({"classes": '["cat", "cat"]'})
    published = {"as_published": "yes", "num_classes": "1000"}
    names = pretrained_weights.imagenet_class_names()
    assert trained_classes.names_of(published) == names
    assert trained_classes.names_of({"as_published": "yes", "num_classes": "10"}) == []


def test_damaged_classes_end_command_in_one_line(tmp_path, capsys):
    write_run(tmp_path / "run", configs.get_recipe("digits"))
    (tmp_path / "run/classes.txt").write_text("cat\ndog\n")
    where = [f"--model_dir={tmp_path / 'run'}", f"--data_dir={tmp_path}"]
    for words in (
        ["evaluate", *where],
        ["export", *where, f"--out={tmp_path / 'out'}"],
    ):
        message = "classes.txt' must be 10, one per class, got 2"
        assert_refused(cli.main(words), message, capsys)
