# SPDX-License-Identifier: Apache-2.0
"""Folders as users have them: what systems add, links, empty classes, other depths, and no validation."""

import dataclasses
import shutil
import unicodedata

import numpy as np
import pytest
from helpers import noise
from PIL import Image

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data.bad_records import OF_SYSTEMS, BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.image_files import find_pictures

SMALL = {
    "input_size": 8,
    "global_batch_size": 2,
    "epochs": 1,
    "warmup_epochs": 0,
    "randaugment_layers": 0,
}
RECIPE = dataclasses.replace(configs.get_recipe("folder"), **SMALL)


def _picture(path, shift=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.roll(noise(12, 10, 3), shift)).save(path)


def _pictures(root, splits=("train", "validation"), count=4):
    """Pictures of cats and dogs, each another one."""
    shifts = iter(range(100))
    for split in splits:
        for name in ("cat", "dog"):
            for number in range(count):
                _picture(root / split / name / f"{number}.png", next(shifts))
    return root


def _open(root, **changes):
    return Dataset.open(dataclasses.replace(RECIPE, **changes), str(root))


def test_what_systems_make_is_no_class_and_no_picture(tmp_path, capsys):
    """Also where it is more than a tenth of the files, it does not end the run."""
    _pictures(tmp_path)
    for name in (
        name for name in OF_SYSTEMS if not name.endswith((".db", ".ini", "\r"))
    ):
        for place in ("", "train", "validation", "train/dog"):
            _picture(tmp_path / place / name.upper() / "thumb.jpg")
    (tmp_path / "train" / "cat" / "Thumbs.db").write_bytes(b"thumbs")
    dataset = _open(tmp_path)
    dataset.check()
    assert dataset.class_names == ["cat", "dog"]
    assert (dataset.num_examples("train"), dataset.num_examples("validation")) == (8, 8)
    said = capsys.readouterr().out
    assert (
        f"left out: 1 of 5 files in {str(tmp_path / 'train' / 'cat')!r} are no pictures"
        in said
    )
    assert f"files in {str(tmp_path / 'train')!r} are no pictures, such as" in said


def test_other_files_still_end_the_run(tmp_path):
    _pictures(tmp_path)
    for number in range(4):
        (tmp_path / "train" / "cat" / f"IMG_{number}.HEIC").write_bytes(b"phone")
    with pytest.raises(
        InputError,
        match=r"4 of 8 files .*0.HEIC' \(HEIC has to be converted, to JPEG for",
    ):
        _open(tmp_path).check()


@pytest.mark.parametrize("content", ["nothing", "a hidden picture", "an empty folder"])
def test_class_without_a_picture_is_refused(tmp_path, content):
    _pictures(tmp_path)
    empty = tmp_path / "train" / "wolf"
    empty.mkdir()
    if content == "a hidden picture":
        _picture(empty / ".0.png")
    elif content == "an empty folder":
        (empty / "raw").mkdir()
    with pytest.raises(
        InputError,
        match="class 'wolf' must be one with pictures, got .*/train/wolf'; remove",
    ):
        _open(tmp_path).check()
    for number in range(2):
        _picture(empty / f"{number}.png", 50 + number)
    _open(tmp_path).check()  # a class may be missing in validation


@pytest.mark.parametrize(
    ("given", "above", "hint"),
    [
        ("", "archive", "--data_dir={}/archive has 'train'"),
        ("train", "", "--data_dir={} has 'train'"),
        ("", "train", "--data_dir={}/train has 'train'"),
    ],
)
def test_nearest_folder_is_named(tmp_path, given, above, hint):
    _pictures(tmp_path / above)
    with pytest.raises(InputError, match=hint.format(tmp_path)):
        _open(tmp_path / given)


def test_only_folder_with_classes_is_named(tmp_path):
    _pictures(tmp_path, ["images"])
    with pytest.raises(
        InputError, match="train_split must be .* got 'train'; --set=train_split=images"
    ):
        _open(tmp_path)
    dataset = _open(tmp_path, train_split="images")
    assert (dataset.num_examples("images"), dataset.num_examples("validation")) == (
        6,
        2,
    )


def _files(dataset, split):
    return [path.decode() for path in dataset.source._files(split)[0]]


@pytest.mark.parametrize(
    ("count", "held"), [(12, ["2", "7"]), (4, ["3"]), (2, ["1"]), (1, [])]
)
def test_without_validation_one_of_five_pictures_is_held_out(
    tmp_path, capsys, count, held
):
    _pictures(tmp_path, ["train"], count)
    dataset = _open(tmp_path)
    expected = {f"{name}/{number}.png" for name in ("cat", "dog") for number in held}
    train = {
        path.removeprefix(f"{tmp_path}/train/") for path in _files(dataset, "train")
    }
    assert len(train) == 2 * (count - len(held)) and not train & expected
    if not held:
        return
    validation = [
        path.removeprefix(f"{tmp_path}/train/")
        for path in _files(dataset, "validation")
    ]
    assert set(validation) == expected
    dataset.check()
    said = capsys.readouterr().out
    made = f"one of 5 pictures of each class, {2 * len(held)} of {2 * count}"
    assert (
        said == f"no folder 'validation' in {str(tmp_path)!r}: validation is {made}\n"
    )
    assert _files(_open(tmp_path), "validation") == _files(dataset, "validation")
    (tmp_path / "train" / "__MACOSX").mkdir()
    _open(tmp_path).check()
    assert capsys.readouterr().out.count("__MACOSX") == 1


def test_a_split_is_made_only_where_there_is_no_other_folder(tmp_path):
    _pictures(tmp_path, ["train", "test"])
    with pytest.raises(
        InputError, match="unknown split in .* 'validation'; did you mean train"
    ):
        _open(tmp_path).check()


def test_other_splits_are_unknown_where_one_is_made(tmp_path):
    _pictures(tmp_path, ["train"])
    with pytest.raises(
        InputError, match="unknown split in .*: 'test'; accepted: train"
    ):
        Dataset.open(RECIPE, str(tmp_path), eval_split="test").check()


def test_names_of_classes_may_have_any_unicode_form(tmp_path):
    for split, form in (("train", "NFC"), ("validation", "NFD")):
        for name in ("Grüner Käfer", "cat"):
            for number in range(3):
                shift = 10 * len(split) + number + len(name)
                _picture(
                    tmp_path
                    / split
                    / unicodedata.normalize(form, name)
                    / f"{number}.png",
                    shift,
                )
    dataset = _open(tmp_path)
    dataset.check()
    assert dataset.class_names == ["Grüner Käfer", "cat"]
    assert dataset.num_examples("validation") == 6
    _picture(
        tmp_path / "train" / unicodedata.normalize("NFD", "Grüner Käfer") / "0.png"
    )
    with pytest.raises(
        InputError, match="folders that differ in more than Unicode form, got"
    ):
        _open(tmp_path)


def test_links_are_followed_but_not_in_circles(tmp_path):
    _pictures(tmp_path / "store", ["train"])
    inside = tmp_path / "store" / "train" / "cat"
    (inside / "again").symlink_to(inside, target_is_directory=True)
    (inside / "above").symlink_to(tmp_path, target_is_directory=True)
    (inside / "more").symlink_to(inside.parent / "dog", target_is_directory=True)
    pictures, others = find_pictures(inside)
    assert others == [str(inside / "above"), str(inside / "again")]
    names = [path.removeprefix(f"{inside}/") for path in pictures]
    assert names == [
        *(f"{n}.png" for n in range(4)),
        *(f"more/{n}.png" for n in range(4)),
    ]
    (inside.parent / "dog" / "back").symlink_to(inside, target_is_directory=True)
    assert find_pictures(inside)[0] == pictures


def test_pictures_in_both_splits_are_counted(tmp_path, capsys):
    _pictures(tmp_path)
    for number in (1, 3):
        name = f"cat/{number}.png"
        shutil.copy(tmp_path / "train" / name, tmp_path / "validation" / name)
    # Another.
    shutil.copy(
        tmp_path / "train" / "dog" / "0.png", tmp_path / "validation" / "cat" / "9.png"
    )
    _open(tmp_path).check()
    first = str(tmp_path / "validation" / "cat" / "1.png")
    line = f"2 pictures of validation are in train too, such as {first!r}: the accuracy is too good\n"
    assert capsys.readouterr().out == line
    _open(tmp_path, eval_split="train").check()
    assert (
        capsys.readouterr().out
        == "the accuracy is measured on train, the pictures of training\n"
    )


def test_evaluation_without_a_readable_picture_ends_before_training(tmp_path):
    _pictures(tmp_path)
    for path in (tmp_path / "validation").rglob("*.png"):
        path.write_bytes(b"no picture")
    message = "no picture of split 'validation' can be read; the last: image must be a complete JPEG"
    with pytest.raises(InputError, match=message):
        _open(tmp_path).check()
    _picture(tmp_path / "validation" / "dog" / "2.png", 77)
    dataset = _open(tmp_path)
    dataset.check()
    assert sum(len(labels) for _, labels in dataset.eval()) == 1
    assert BadRecords().limit == 100
