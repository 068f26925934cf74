# SPDX-License-Identifier: Apache-2.0
"""Names of classes: reading, comparing, and refusing invalid ones before training."""

import dataclasses
import os

import pytest
from PIL import Image

from lambdanet import cli, configs
from lambdanet.errors import InputError
from lambdanet.training.data import class_names, records
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run import build, model_dir
from lambdanet.training.run.checkpoints import Checkpoints

BREAKS = [
    line[-1]
    for line in " ".join(map(chr, range(0x110000))).splitlines(keepends=True)[:-1]
]
RECIPE = dataclasses.replace(
    configs.get_recipe("folder"), input_size=8, global_batch_size=2
)


def _folder(root, name):
    for split in ("train", "validation"):
        for one in (b"cat", name):
            folder = os.path.join(os.fsencode(root), split.encode(), one)
            os.makedirs(folder)
            Image.new("RGB", (8, 8)).save(os.path.join(os.fsdecode(folder), "1.png"))


def _records(root, file, content):
    for split in ("train", "validation"):
        (root / records.shard_name(split, 0, 1)).touch()
    (root / file).write_bytes(content)


@pytest.mark.parametrize("name", ["dog\u2028".encode(), b"dog\xff", b" "])
def test_folder_with_invalid_class_name_is_rejected(tmp_path, capsys, name):
    _folder(tmp_path / "pictures", name)
    words = [f"--data_dir={tmp_path / 'pictures'}", f"--model_dir={tmp_path / 'run'}"]
    assert cli.main(["train", "--recipe=folder", *words]) == 2
    said = capsys.readouterr().err
    names = [os.fsdecode(name), "cat"]
    wrong = f"class {sorted(names).index(names[0])} of dataset folder must be a name of one line in UTF-8"
    assert said == f"lambdanet: error: {wrong}, got {names[0]!r}\n"
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
        ("manifest.json", b'{"classes": ["cat", 7]}', "class 1 of .* got 7"),
    ],
)
def test_records_with_invalid_class_names_are_rejected(
    tmp_path, file, content, message
):
    _records(tmp_path, file, content)
    recipe = dataclasses.replace(RECIPE, dataset="tfrecord")
    with pytest.raises(InputError, match=message) as caught:
        Dataset.open(recipe, str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dataset", ["folder", "tfrecord", "digits"])
def test_data_dir_not_in_utf8_is_rejected(tmp_path, dataset):
    data_dir = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(data_dir)
    with pytest.raises(
        InputError, match="data_dir must be a path in UTF-8, got .*udcff'"
    ):
        Dataset.open(dataclasses.replace(RECIPE, dataset=dataset), data_dir)


def test_every_line_break_in_names_is_rejected():
    assert len(BREAKS) > 8
    for name in (name for end in BREAKS for name in (f"a{end}b", f"a{end}", f"{end}a")):
        with pytest.raises(
            InputError,
            match="class 1 of it must be a name of one line in UTF-8, got 'a?",
        ):
            class_names.check_names(["plain", name], "it")
    class_names.check_names(["a", " b c", "Hausboot, groß", "猫", "'\"", "a\tb"], "it")


def test_read_names_one_per_line(tmp_path):
    file = tmp_path / "classes.txt"
    for content, names in [
        ("a\nb c\n", ["a", "b c"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\u2028b\x0b\n c\n", ["a\u2028b\x0b", " c"]),
        ("a\n\n", ["a", ""]),
    ]:
        file.write_bytes(content.encode())
        assert class_names.read_names(file) == names


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("cat\n", "class 1 of the data must be None, as in .* got 'dog'"),
        ("cat\ndog\nwolf\n", "class 2 of the data must be 'wolf', as in .* got None"),
        ("cat\nwolf\n", "class 1 of the data must be 'wolf', as in .* got 'dog'"),
        ("", "class 0 of the data must be '', as in .* got 'cat'"),
    ],
)
def test_classes_other_than_in_model_dir_are_rejected(tmp_path, kept, message):
    model_dir.claim(tmp_path, RECIPE, ["cat", "dog"])
    model_dir.claim(tmp_path, RECIPE, ["cat", "dog"])
    (tmp_path / "classes.txt").write_text(kept)
    for function in (
        model_dir.check_class_names,
        lambda path, names: model_dir.claim(path, RECIPE, names),
    ):
        with pytest.raises(InputError, match=message):
            function(tmp_path, ["cat", "dog"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cat\n\xff\n", "classes.txt' cannot be read: 'utf-8' codec"),
        (b"cat\ndog\n", "classes.txt' must be 10, one per class, got 2"),
    ],
)
def test_damaged_classes_end_command_in_one_line(tmp_path, capsys, content, message):
    recipe = configs.get_recipe("digits")
    model_dir.claim(tmp_path / "run", recipe)
    built = build.build_model(recipe), build.build_optimizer(recipe, 1)
    Checkpoints(tmp_path / "run" / "checkpoints", *built).save(1)
    (tmp_path / "run" / "classes.txt").write_bytes(content)
    where = [f"--model_dir={tmp_path / 'run'}", f"--data_dir={tmp_path}"]
    for words in (
        ["evaluate", *where],
        ["export", *where, f"--out={tmp_path / 'out'}"],
    ):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
