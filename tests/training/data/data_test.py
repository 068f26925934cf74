# SPDX-License-Identifier: Apache-2.0
"""The digits of TFDS, augmented and repeated pictures, weights of evaluation, and invalid datasets."""

import itertools
import socket
from dataclasses import replace

import numpy as np
import pytest
import tensorflow_datasets as tfds
from helpers import assert_equal_batches
from picture_sources import LEVELS, RECIPE, numbers, write_tfds
from refusals import refused
from sklearn import datasets
from training_runs import open_dataset

from lambdanet import cli, configs
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard
from lambdanet.training.data.tfds_source import Digits, prepare_on_disk

DIGITS = configs.get_recipe("digits")
SIZES = {"train": 1442, "test": 355}
PLAIN = replace(RECIPE, global_batch_size=12)
AUGMENTED = replace(PLAIN, augmentation="affine")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The digits, prepared without a network."""
    path = str(tmp_path_factory.mktemp("data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", _no_network)
        patch.setattr(socket.socket, "connect", _no_network)
        tfds.builder("digits", data_dir=path).download_and_prepare()
    return path


def _no_network(*args, **kwargs):
    raise AssertionError("the digits need no network")


@pytest.fixture(scope="module")
def grays(tmp_path_factory):
    """Sixty gray pictures."""
    root = tmp_path_factory.mktemp("grays")
    write_tfds(root)
    return str(root)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_another_process_prepares_the_data_first(tmp_path, monkeypatch, when):
    """Both then read the same."""
    first, second = Digits(data_dir=tmp_path), Digits(data_dir=tmp_path)
    if when == "before":
        prepare_on_disk(first)
    else:
        split = second._split_generators
        monkeypatch.setattr(
            second,
            "_split_generators",
            lambda *args: prepare_on_disk(first) and split(*args),
        )
    for builder in (first, prepare_on_disk(second)):
        assert {name: len(builder.as_dataset(name)) for name in SIZES} == SIZES
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def test_digits_are_those_of_scikit_learn(data_dir):
    splits = tfds.load("digits", data_dir=data_dir, as_supervised=True)
    images, labels = datasets.load_digits(return_X_y=True)
    pixels = map(tuple, np.round(images * 255 / 16))
    source = sorted(zip(labels, pixels, strict=True))
    pairs = {name: list(split.as_numpy_iterator()) for name, split in splits.items()}
    assert {name: len(pair) for name, pair in pairs.items()} == SIZES
    prepared = sorted(
        (label, tuple(image.ravel()))
        for pair in pairs.values()
        for image, label in pair
    )
    assert prepared == source
    in_test = np.bincount([label for _, label in pairs["test"]]) / np.bincount(labels)
    assert in_test.min() > 0.18 and in_test.max() <= 0.2


def test_class_names_and_counts(data_dir, tmp_path, monkeypatch):
    for folder in (data_dir, str(tmp_path)):  # the images need not be on disk
        assert open_dataset(DIGITS, folder).class_names == list("0123456789")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("HOME", data_dir)
    dataset = open_dataset(DIGITS, "~", train_split="train[:200]")
    assert dataset.num_examples("train[:200]") == 200
    assert dataset.num_examples("test") == 355
    assert dataset.steps_per_epoch == 3  # of 64


def test_unwritable_home_is_named_with_flag(tmp_path, monkeypatch, capsys):
    (tmp_path / "home").touch()
    default = f"{tmp_path / 'home'}/tensorflow_datasets"
    # Of $HOME when TFDS is imported.
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", default)
    run = tmp_path / "run"
    assert cli.main(["train", "--recipe=digits", f"--model_dir={run}"]) == 2
    said = f"dataset digits cannot be written to {f'{default}/digits'!r}"
    reason = "(Not a directory); --data_dir names another folder"
    assert capsys.readouterr().err == f"lambdanet: error: {said} {reason}\n"
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize("shard", [SINGLE_MACHINE, Shard(1, 2, 4)])
def test_repeated_augmentation_has_copies_in_a_row(grays, shard):
    """Without augmentation, an epoch repeats each of a third of the images three times."""
    plain = replace(PLAIN, epochs=2)
    repeated = replace(PLAIN, repeated_augmentation=3, epochs=4)
    once, thrice = (
        sum(numbers(open_dataset(recipe, grays).train(shard=shard)), [])
        for recipe in (plain, repeated)
    )
    assert thrice == [number for number in once for _ in range(3)]
    assert open_dataset(repeated, grays).steps_per_epoch == 5


@pytest.mark.slow
def test_copies_differ_and_resume(grays):
    recipe = replace(AUGMENTED, repeated_augmentation=3)
    dataset = open_dataset(recipe, grays)
    batches = list(dataset.train())
    (copies, _), *_ = batches
    for a, b in itertools.combinations(copies[:3], 2):
        assert np.abs(a - b).max() > LEVELS
    assert_equal_batches(batches[7:], dataset.train(7))
    # Within the copies of an image: 7 x 20 = 46 x 3 + 2.
    twenty = open_dataset(recipe, grays, global_batch_size=20)
    assert_equal_batches(list(twenty.train())[7:], twenty.train(7))


@pytest.mark.parametrize(
    ("images", "count", "replicas"),
    [pytest.param(50, 2, 4, marks=pytest.mark.slow), (7, 3, 3)],
)
def test_padded_evaluation_weighs_each_image_once(grays, images, count, replicas):
    dataset = open_dataset(PLAIN, grays, eval_split=f"test[:{images}]")
    steps = dataset.eval_steps(Shard(0, count, replicas))
    parts = []
    for index in range(count):
        part = dataset.eval(Shard(index, count, replicas, pad_last_batch=True))
        parts += part
        assert len(list(part)) == steps * replicas // count
    assert {len(batch[0]) for batch in parts} == {12 // replicas}
    weights = np.concatenate([batch[2] for batch in parts])
    # What Keras divides by is their sum.
    assert weights.sum() == pytest.approx(len(weights))
    assert len(set(weights[weights > 0])) == 1
    shown = np.concatenate([np.rint(x[:, 0, 0, 0] / LEVELS) for x, *_ in parts])
    assert len(shown[weights > 0]) == len(set(shown[weights > 0])) == images


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "digts"}, "unknown dataset 'digts'; did you mean digits"),
        (
            {"dataset": "huggingface:x"},
            "'huggingface:x' cannot be loaded: it is not one of TFDS itself",
        ),
        ({"dataset": "digits:9.9.9"}, "'digits:9.9.9' cannot be loaded: .*only: 1.0.0"),
        ({"dataset": "coco"}, "dataset coco must be an image named .*, got .'image'"),
        (
            {"dataset": "imagenet2012", "num_classes": 1000},
            "imagenet2012 has to be downloaded by hand",
        ),
        ({"num_classes": 9}, "num_classes must be 10, as in dataset digits, got 9"),
        (
            {"mean": (0.5, 0.5), "std": (1, 1), "dataset": "cifar10"},
            "channels of mean .* be 3, .* got 2",
        ),
        ({"eval_split": "test[x:]"}, r"split 'test\[x:\]' of digits cannot be read"),
        ({"eval_split": "test[:0]"}, r"must be one with images, got 'test\[:0\]'"),
        (
            {"train_split": "train[:200]", "global_batch_size": 201},
            "at most 200, .*, got 201; such as --set=global_batch_size=32",
        ),
    ],
)
def test_unusable_dataset_is_rejected(data_dir, changes, message):
    with refused(message):
        open_dataset(DIGITS, data_dir, **changes).check()


def test_without_a_network_the_files_are_named(tmp_path, monkeypatch):
    def fail(self, **options):
        raise ConnectionError("Name or service not known")

    builder = type(tfds.builder("fashion_mnist"))
    monkeypatch.setattr(builder, "download_and_prepare", fail)
    recipe = configs.get_recipe("fashion_mnist")
    with pytest.raises(OSError, match="known; Debian's package dataset-fashion-mnist"):
        open_dataset(recipe, tmp_path).num_examples("train")


def test_split_below_one_image_per_machine_is_rejected(grays):
    with refused(r"split 'test\[:2\]' must be at least 3, one per machine, got 2"):
        open_dataset(PLAIN, grays, eval_split="test[:2]").eval(Shard(0, 3, 3))
