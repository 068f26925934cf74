# SPDX-License-Identifier: Apache-2.0
"""Folders as users have them: what systems add, links, empty classes, other depths, and no validation."""

import dataclasses
import os
import shutil
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from helpers import noise, write_picture
from picture_sources import write_tfrecord
from refusals import refused
from training_runs import open_dataset, recipe_with

import lambdanet
from lambdanet import configs
from lambdanet.configs.registry import pretrained_weights
from lambdanet.training.data import preprocess
from lambdanet.training.data.bad_records import OF_SYSTEMS, BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.image_files import find_pictures, read_image
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard

SMALL = {
    "input_size": 8,
    "global_batch_size": 2,
    "epochs": 1,
    "warmup_epochs": 0,
    "randaugment_layers": 0,
}
RECIPE = recipe_with("folder", **SMALL)


def _picture(path, shift=0):
    return write_picture(path, np.roll(noise(12, 10, 3), shift))


def _pictures(root, splits=("train", "validation"), count=4):
    """Pictures of cats and dogs, each another one."""
    shifts = iter(range(100))
    for split in splits:
        for name in ("cat", "dog"):
            for number in range(count):
                _picture(root / split / name / f"{number}.png", next(shifts))
    return root


def _open(root, **changes):
    return open_dataset(RECIPE, root, **changes)


def _files(dataset, split, shard=SINGLE_MACHINE):
    """The paths of the pictures in a machine's part of a split, below its folder."""
    examples = dataset.source.examples(split, None, shard).as_numpy_iterator()
    paths = [example["name"].decode() for example in examples]
    return ["/".join(path.split("/")[-2:]) for path in paths]


def test_recipes_have_preprocessing_of_their_weights():
    for one in pretrained_weights.WEIGHTS:
        recipe = configs.get_recipe(f"finetune:{one.model}")
        found = (recipe.model, recipe.start_from, recipe.num_classes)
        assert found == (one.model, one.tag, 0)
        assert preprocess.of_recipe(recipe) == lambdanet.preprocess_for(one.model)


def test_each_machine_has_pictures_of_all_classes(tmp_path):
    dataset = _open(_pictures(tmp_path))
    for index in range(3):
        names = _files(dataset, "train", Shard(index, 3))
        assert {name[:3] for name in names} == {"cat", "dog"}


def test_what_systems_make_is_no_class_and_no_picture(tmp_path, capsys):
    """Also where it is more than a tenth of the files, it does not end the run."""
    _pictures(tmp_path)
    folders = [x for x in OF_SYSTEMS if not x.endswith((".db", ".ini", "\r"))]
    for name in folders:
        for place in ("", "train", "validation", "train/dog"):
            _picture(tmp_path / place / name.upper() / "thumb.jpg")
    (tmp_path / "train/cat/Thumbs.db").write_bytes(b"thumbs")
    dataset = _open(tmp_path)
    dataset.check()
    assert dataset.class_names == ["cat", "dog"]
    assert [dataset.num_examples(x) for x in ("train", "validation")] == [8, 8]
    said = capsys.readouterr().out
    cats = str(tmp_path / "train/cat")
    assert f"left out: 1 of 5 files in {cats!r} are no pictures" in said
    assert f"files in {str(tmp_path / 'train')!r} are no pictures, such as" in said


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "folders in .* must be train/CLASS.*, got ..; train_split is 'train'"),
        (["archive/train/cat"], r"must be train/CLASS.*, got \['archive'\]; train_spl"),
        (
            ["train/train/cat", "train/train/dog", "train/validation/dog"],
            r"classes in .*train' must be two .*, got \['train', 'validation'\]",
        ),
        (
            ["train/cat", "validation/cat"],
            "classes in .*train' must be two or more folders of pictures, got .'cat'",
        ),
        (
            ["train/cat", "train/dog", "validation/dog"],
            "split of dataset folder must be one with images, got 'validation'",
        ),
        (
            ["train/cat", "train/dog", "validation/cow"],
            "unknown class in .*validation' 'cow'; .*cat",
        ),
    ],
)
def test_empty_folders_are_rejected_in_one_line(tmp_path, folders, message):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with refused(message):
        _open(tmp_path).num_examples("validation")


def test_folder_requires_data_dir(tmp_path):
    for folder in (None, str(tmp_path / "missing")):
        with refused("data_dir must be the folder of the pictures, .*, got (None|'.*)"):
            Dataset.open(RECIPE, folder)


def test_other_files_end_the_run(tmp_path):
    folder = _pictures(tmp_path) / "train/cat"
    for number in range(4):
        (folder / f"IMG_{number}.HEIC").write_bytes(b"phone")
    with refused(r"4 of 8 files .*0.HEIC' \(HEIC has to be converted, to JPEG for"):
        _open(tmp_path).check()
    for path in folder.glob("*.png"):
        path.unlink()
    with refused(r"pictures in .*cat' must be names that end in .*\.webp, got '.*0.HE"):
        open_dataset(RECIPE, tmp_path, BadRecords(100)).check()


def test_class_without_a_picture_is_refused(tmp_path):
    """With a hidden one, and a folder without any."""
    _pictures(tmp_path)
    empty = tmp_path / "train/wolf"
    (empty / "raw").mkdir(parents=True)
    _picture(empty / ".0.png")
    with refused("class 'wolf' must be one with pictures, got .*/train/wolf'; remove"):
        _open(tmp_path).check()
    for number in range(2):
        _picture(empty / f"{number}.png", 50 + number)
    _open(tmp_path).check()  # a class may be missing in validation


def test_split_of_training_may_have_another_name(tmp_path):
    _pictures(tmp_path, ["images"])
    dataset = _open(tmp_path, train_split="images")
    assert [dataset.num_examples(x) for x in ("images", "validation")] == [6, 2]


@pytest.mark.parametrize(
    ("count", "held"), [(12, ["2", "7"]), (4, ["3"]), (2, ["1"]), (1, [])]
)
def test_without_validation_one_of_five_pictures_is_held_out(
    tmp_path, capsys, count, held
):
    _pictures(tmp_path, ["train"], count)
    dataset = _open(tmp_path)
    expected = {f"{name}/{number}.png" for name in ("cat", "dog") for number in held}
    train = set(_files(dataset, "train"))
    assert len(train) == 2 * (count - len(held)) and not train & expected
    if not held:
        return
    assert set(_files(dataset, "validation")) == expected
    dataset.check()
    number = f"{2 * len(held)} of {2 * count} pictures of train, some of each class\n"
    line = f"no folder 'validation' in {str(tmp_path)!r}: validation is {number}"
    assert capsys.readouterr().out == line
    (tmp_path / "train/__MACOSX").mkdir()
    _open(tmp_path).check()
    assert capsys.readouterr().out.count("__MACOSX") == 1


@pytest.mark.parametrize(
    ("splits", "recipe", "wanted", "message"),
    [
        # A split is made only where there is no other folder.
        (["train", "test"], {}, None, "'validation'; did you mean train"),
        (["train"], {}, "test", "'test'; accepted: train"),
        # `evaluate` reads another split than the one that selects the best epoch.
        (["train", "validation"], {"eval_split": "test"}, "validation", "'test'"),
    ],
)
def test_other_splits_are_unknown(tmp_path, splits, recipe, wanted, message):
    _pictures(tmp_path, splits)
    with refused(f"unknown split in .* {message}"):
        recipe = dataclasses.replace(RECIPE, **recipe)
        Dataset.open(recipe, str(tmp_path), eval_split=wanted).check()


def test_a_class_alone_is_refused(tmp_path):
    """`export` needs two classes."""
    fields = write_tfrecord(tmp_path, 3, 1) | {"num_classes": 1}
    with refused(r"classes of dataset tfrecord must be two or more, got \['0'\]"):
        _open(tmp_path, **fields).check()


def test_names_of_classes_may_have_any_unicode_form(tmp_path):
    for split, form in (("train", "NFC"), ("validation", "NFD")):
        for name in ("Grüner Käfer", "cat"):
            folder = tmp_path / split / unicodedata.normalize(form, name)
            for number in range(3):
                shift = 10 * len(split) + number + len(name)
                _picture(folder / f"{number}.png", shift)
    dataset = _open(tmp_path)
    dataset.check()
    assert dataset.class_names == ["Grüner Käfer", "cat"]
    assert dataset.num_examples("validation") == 6
    same = unicodedata.normalize("NFD", "Grüner Käfer")
    _picture(tmp_path / "train" / same / "0.png")
    with refused("names of dataset folder must be different names, got"):
        _open(tmp_path)


def test_links_are_followed_but_not_in_circles(tmp_path):
    inside = _pictures(tmp_path / "store", ["train"]) / "train/cat"
    (inside / "again").symlink_to(inside, target_is_directory=True)
    (inside / "above").symlink_to(tmp_path, target_is_directory=True)
    (inside / "more").symlink_to(inside.parent / "dog", target_is_directory=True)
    pictures, others = find_pictures(inside)
    assert others == [str(inside / "above"), str(inside / "again")]
    names = [path.removeprefix(f"{inside}/") for path in pictures]
    files = [f"{number}.png" for number in range(4)]
    assert names == [*files, *(f"more/{file}" for file in files)]
    (inside.parent / "dog/back").symlink_to(inside, target_is_directory=True)
    assert find_pictures(inside)[0] == pictures


def test_nested_folders_and_names_in_any_bytes(tmp_path):
    _pictures(tmp_path, count=2)
    dogs = tmp_path / "validation/dog"
    deep = dogs / "2024/may"
    deep.mkdir(parents=True)
    (dogs / "0.png").rename(deep / "picture.png")
    strange = os.fsdecode(os.fsencode(dogs) + b"/\xff\xfe.png")
    (dogs / "1.png").rename(strange)
    write_picture(dogs / "2024/.hidden/other.png", (0, 0, 0))
    dataset = _open(tmp_path, global_batch_size=4)
    ((images, labels),) = dataset.eval()
    assert labels.numpy().tolist() == [0, 0, 1, 1]
    pictures = tf.cast([read_image(deep / "picture.png"), read_image(strange)], "uint8")
    expected = preprocess.of_recipe(dataset.recipe)(pictures)
    np.testing.assert_allclose(images[2:], expected, atol=1e-5)


def test_pictures_in_both_splits_are_counted(tmp_path, capsys):
    _pictures(tmp_path)
    cats = tmp_path / "validation/cat"
    for number in (1, 3):
        shutil.copy(tmp_path / f"train/cat/{number}.png", cats)
    # Another class.
    shutil.copy(tmp_path / "train/dog/0.png", cats / "9.png")
    _open(tmp_path).check()
    pictures = [cats / "1.png", tmp_path / "train/cat/1.png", cats / "3.png"]
    found = "6 pictures have two labels or are in two splits, such as"
    names = ", ".join(repr(str(path)) for path in pictures)
    assert capsys.readouterr().out == f"{found} {names}: the accuracy says less\n"
    _open(tmp_path, eval_split="train").check()
    line = "the accuracy is measured on train, the pictures of training\n"
    assert capsys.readouterr().out == line


def test_evaluation_without_a_readable_picture_ends_before_training(tmp_path):
    _pictures(tmp_path)
    for path in (tmp_path / "validation").rglob("*.png"):
        path.write_bytes(b"no picture")
    message = "no picture of split 'validation' can be read; the last: image must be a"
    with refused(message):
        _open(tmp_path).check()
    _picture(tmp_path / "validation/dog/2.png", 77)
    dataset = _open(tmp_path)
    dataset.check()
    assert sum(len(labels) for _, labels in dataset.eval()) == 1
    assert dataset.bad_records.limit == 100
