# SPDX-License-Identifier: Apache-2.0
"""The digits dataset of TFDS, batches that depend only on the recipe and the step, and parts of machines."""

import dataclasses
import itertools
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image
from sklearn import datasets

from lambdanet import cli, configs
from lambdanet.errors import InputError
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.folder import FolderSource
from lambdanet.training.data.sources import (
    SINGLE_MACHINE,
    Digits,
    Shard,
    prepare_on_disk,
)

FIELDS = {
    "epochs": 3,
    "global_batch_size": 20,
    "train_split": "train[:200]",
    "input_size": 8,
}
RECIPE = dataclasses.replace(configs.get_recipe("digits"), **FIELDS)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The digits in four files, so that files are shuffled too, prepared without a network."""
    path = str(tmp_path_factory.mktemp("data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", _no_network)
        patch.setattr(socket.socket, "connect", _no_network)
        builder = tfds.builder("digits", data_dir=path)
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(num_shards=4)
        )
    return path


def _no_network(*args, **kwargs):
    raise AssertionError("the digits need no network")


def _batches(recipe, role, data_dir, **kwargs):
    batches = getattr(Dataset.open(recipe, data_dir), role)(**kwargs)
    return [tuple(field.numpy() for field in batch) for batch in batches]


def _shard(*numbers):
    return {"shard": Shard(*numbers, pad_last_batch=True)}


@pytest.fixture(scope="module")
def whole(data_dir):
    """All batches of training."""
    return _batches(RECIPE, "train", data_dir)


def _assert_equal(left, right):
    assert len(left) == len(right)
    for (images, labels), (other_images, other_labels) in zip(left, right, strict=True):
        np.testing.assert_array_equal(labels, other_labels)
        np.testing.assert_array_equal(images, other_images)


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
        assert {name: len(builder.as_dataset(name)) for name in ("train", "test")} == {
            "train": 1442,
            "test": 355,
        }
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def test_digits_are_those_of_scikit_learn(data_dir):
    splits = tfds.load("digits", data_dir=data_dir, as_supervised=True)
    images, labels = datasets.load_digits(return_X_y=True)
    pixels = map(tuple, np.round(images * 255 / 16))
    source = sorted(zip(labels, pixels, strict=True))
    pairs = {name: list(split.as_numpy_iterator()) for name, split in splits.items()}
    assert {name: len(pair) for name, pair in pairs.items()} == {
        "train": 1442,
        "test": 355,
    }
    prepared = sorted(
        (label, tuple(image.ravel()))
        for pair in pairs.values()
        for image, label in pair
    )
    assert prepared == source
    in_test = np.bincount([label for _, label in pairs["test"]]) / np.bincount(labels)
    assert in_test.min() > 0.18 and in_test.max() <= 0.2


def test_class_names_and_counts(data_dir, tmp_path):
    for folder in (data_dir, str(tmp_path)):  # the images need not be on disk
        assert Dataset.open(RECIPE, folder).class_names == list("0123456789")
    assert not list(tmp_path.iterdir())
    assert Dataset.open(RECIPE, data_dir).num_examples(RECIPE.train_split) == 200
    assert Dataset.open(RECIPE, data_dir).num_examples(RECIPE.eval_split) == 355
    thirty = dataclasses.replace(RECIPE, global_batch_size=30)
    assert Dataset.open(thirty, data_dir).steps_per_epoch == 6
    assert [
        len(labels) for _, labels in _batches(thirty, "train", data_dir)
    ] == 3 * 6 * [30]


def test_unwritable_home_is_named_with_flag(tmp_path, monkeypatch, capsys):
    (tmp_path / "home").touch()
    default = f"{tmp_path / 'home'}/tensorflow_datasets"
    # Of $HOME when TFDS is imported.
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", default)
    assert (
        cli.main(["train", "--recipe=digits", f"--model_dir={tmp_path / 'run'}"]) == 2
    )
    folder = f"{default}/digits"
    reason = "(Not a directory); --data_dir names another folder"
    said = capsys.readouterr().err
    assert (
        said
        == f"lambdanet: error: dataset digits cannot be written to {folder!r} {reason}\n"
    )
    assert not (tmp_path / "run").exists()


def test_evaluation_is_in_order_with_last_partial_batch(data_dir):
    first, again = (_batches(RECIPE, "eval", data_dir) for _ in range(2))
    _assert_equal(first, again)
    assert [len(labels) for _, labels in first] == 17 * [20] + [15]
    assert first[0][0].shape == (20, 8, 8, 3) and first[0][0].dtype == np.float32


def test_epochs_have_each_image_once_in_another_order(data_dir):
    batches = _batches(
        dataclasses.replace(RECIPE, augmentation="none"), "train", data_dir
    )
    parts = (batches[begin : begin + 10] for begin in (0, 10, 20))
    epochs = [
        [image.tobytes() for images, _ in part for image in images] for part in parts
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert len(set(epochs[0])) > 195  # except equal images
    for left, right in [(0, 1), (0, 2), (1, 2)]:
        assert (
            np.mean([a == b for a, b in zip(epochs[left], epochs[right], strict=True)])
            < 0.1
        )


@pytest.mark.parametrize("shard", [SINGLE_MACHINE, Shard(1, 2, 4)])
def test_repeated_augmentation_has_copies_in_a_row(data_dir, shard):
    """Without augmentation, an epoch repeats each image of the pass three times."""
    plain = dataclasses.replace(RECIPE, augmentation="none", epochs=2)
    repeated = dataclasses.replace(plain, repeated_augmentation=3, epochs=4)
    runs = (
        _batches(recipe, "train", data_dir, shard=shard) for recipe in (plain, repeated)
    )
    once, thrice = (
        [image.tobytes() for images, _ in run for image in images] for run in runs
    )
    assert thrice == [image for image in once for _ in range(3)]
    assert Dataset.open(repeated, data_dir).steps_per_epoch == 10
    epoch = thrice[: 200 // shard.count // 3 * 3]
    assert all(epoch.count(image) % 3 == 0 for image in epoch)  # 3, except equal digits
    assert len({*epoch}) == pytest.approx(len(epoch) / 3, abs=3)


def test_copies_differ_and_resume(data_dir):
    recipe = dataclasses.replace(RECIPE, repeated_augmentation=3)
    batches = _batches(recipe, "train", data_dir)
    (first, second, third, *_), labels = batches[0]
    assert len({*labels[:3]}) == len({*labels[3:6]}) == 1
    assert (
        min(
            np.abs(a - b).max()
            for a, b in [(first, second), (first, third), (second, third)]
        )
        > 0.1
    )
    for step in (7, 13):  # within the copies of an image: 7 x 20 = 46 x 3 + 2
        _assert_equal(
            batches[step:], _batches(recipe, "train", data_dir, initial_step=step)
        )


@pytest.mark.parametrize(("options", "devices"), [({}, 1), (_shard(1, 2, 4), 2)])
def test_resumed_batches_equal_uninterrupted_ones(data_dir, options, devices):
    """Within an epoch of 10 steps, each of a batch per device of this machine."""
    whole, rest = (
        _batches(RECIPE, "train", data_dir, initial_step=step, **options)
        for step in (0, 17)
    )
    _assert_equal(whole[17 * devices :], rest)


def test_first_images_are_those_of_first_batch(data_dir, whole):
    images, _ = whole[0]
    np.testing.assert_array_equal(
        Dataset.open(RECIPE, data_dir).first_images(16), images[:16]
    )


def test_batches_depend_on_recipe_seed_only(data_dir, whole):
    tf.random.set_seed(1)
    _assert_equal(whole, _batches(RECIPE, "train", data_dir))
    other = Dataset.open(dataclasses.replace(RECIPE, seed=1), data_dir).train().take(3)
    assert any(
        (a[1] != b[1].numpy()).any() for a, b in zip(whole[:3], other, strict=True)
    )


def test_augmentation_differs_between_epochs(data_dir):
    one = dataclasses.replace(RECIPE, train_split="train[:1]", global_batch_size=1)
    images = [images for images, _ in _batches(one, "train", data_dir)]
    assert (
        np.abs(images[0] - images[1]).max() > 0.1
        and np.abs(images[1] - images[2]).max() > 0.1
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "digts"}, "unknown dataset 'digts'; did you mean digits"),
        (
            {"dataset": "huggingface:x"},
            "'huggingface:x' cannot be loaded: it is not one of TFDS itself",
        ),
        ({"dataset": "digits:9.9.9"}, "'digits:9.9.9' cannot be loaded: .*only: 1.0.0"),
        ({"dataset": "digits/large"}, "'digits/large' cannot be loaded"),
        ({"dataset": "two words"}, "'two words' cannot be loaded"),
        (
            {"dataset": "coco"},
            "features of dataset coco must be an image named .*, got .'image'",
        ),
        (
            {"dataset": "imagenet2012", "num_classes": 1000},
            "imagenet2012 has to be downloaded by hand",
        ),
        ({"num_classes": 9}, "num_classes must be 10, as in dataset digits, got 9"),
        (
            {"mean": (0.5, 0.5), "std": (1, 1), "dataset": "cifar10"},
            "channels of mean .* be 3, .* got 2",
        ),
        (
            {"eval_split": "tets"},
            "unknown split of dataset digits 'tets'; did you mean test",
        ),
        ({"eval_split": "test[x:]"}, r"split 'test\[x:\]' of digits cannot be read"),
        ({"eval_split": "test[:0]"}, r"must be one with images, got 'test\[:0\]'"),
    ],
)
def test_unusable_dataset_is_rejected(data_dir, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        Dataset.open(dataclasses.replace(RECIPE, **changes), data_dir).eval()
    assert "\n" not in str(caught.value)


def test_data_dir_with_tilde(data_dir, monkeypatch):
    monkeypatch.setenv("HOME", data_dir)
    assert Dataset.open(RECIPE, "~").num_examples(RECIPE.train_split) == 200


def test_split_below_one_batch_is_rejected(data_dir):
    with pytest.raises(
        InputError, match="at most 200, .*, got 201; such as --set=global_batch_size=32"
    ):
        assert Dataset.open(
            dataclasses.replace(RECIPE, global_batch_size=201), data_dir
        ).steps_per_epoch


# Parts of the data for machines and devices.


PLAIN = dataclasses.replace(RECIPE, epochs=1, global_batch_size=12, augmentation="none")


@pytest.fixture(scope="module")
def plain_images(data_dir):
    """The images of an epoch on one machine."""
    return [
        image.tobytes()
        for images, _ in _batches(PLAIN, "train", data_dir)
        for image in images
    ]


@pytest.mark.parametrize("count", [2, 3])
def test_machines_read_disjoint_parts(data_dir, plain_images, count):
    parts = [
        _batches(PLAIN, "train", data_dir, **_shard(index, count, 2 * count))
        for index in range(count)
    ]
    assert {len(images) for part in parts for images, _ in part} == {12 // (2 * count)}
    assert {len(part) for part in parts} == {
        2 * Dataset.open(PLAIN, data_dir).steps_per_epoch
    }
    read = [
        [image.tobytes() for images, _ in part for image in images] for part in parts
    ]
    # Some digits are equal.
    twice = {image for image in plain_images if plain_images.count(image) > 1}
    for left, right in itertools.combinations(read, 2):
        assert set(left) & set(right) <= twice
    # Of 200; the machines leave out different ones.
    assert len(set().union(*read)) > 185


def test_machines_have_different_augmentation(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, [2, 40, 40, 3], np.uint8)
    for kind, number in itertools.product(range(2), range(2)):
        (tmp_path / "train" / str(kind)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[kind]).save(
            tmp_path / "train" / str(kind) / f"{number}.png"
        )
    small = {
        "num_classes": 2,
        "input_size": 8,
        "global_batch_size": 4,
        "epochs": 1,
        "warmup_epochs": 0,
    }
    recipe = dataclasses.replace(
        configs.get_recipe("folder"), randaugment_layers=0, **small
    )
    recipe = dataclasses.replace(recipe, eval_split="train")
    left, right = (
        _batches(recipe, "train", str(tmp_path), **_shard(index, 2, 2))[0]
        for index in range(2)
    )
    # The same two pictures in the same order.
    np.testing.assert_array_equal(left[1], right[1])
    assert np.abs(left[0] - right[0]).max() > 0.1


@pytest.fixture(scope="module")
def evaluated(data_dir):
    """The first images of the evaluation split, in order, on one machine."""
    recipe = dataclasses.replace(RECIPE, eval_split="test[:50]")
    return np.concatenate([pixels for pixels, _ in _batches(recipe, "eval", data_dir)])


@pytest.mark.parametrize(
    ("images", "count", "replicas"), [(50, 1, 2), (50, 2, 4), (7, 3, 3), (48, 2, 2)]
)
def test_padded_evaluation_weighs_each_image_once(
    data_dir, evaluated, images, count, replicas
):
    recipe = dataclasses.replace(
        RECIPE, eval_split=f"test[:{images}]", global_batch_size=12
    )
    steps = Dataset.open(recipe, data_dir).eval_steps(Shard(0, count, replicas))
    parts = [
        _batches(recipe, "eval", data_dir, **_shard(index, count, replicas))
        for index in range(count)
    ]
    assert {len(part) for part in parts} == {steps * replicas // count}
    assert {batch[0].shape[0] for part in parts for batch in part} == {12 // replicas}
    pixels, _, weights = (
        np.concatenate(field) for field in zip(*sum(parts, []), strict=True)
    )
    assert weights.sum() == pytest.approx(len(pixels))  # what Keras divides by
    assert sorted(map(bytes, pixels[weights > 0])) == sorted(
        map(bytes, evaluated[:images])
    )
    assert len(set(weights[weights > 0])) == 1


def test_folder_shards_have_equal_sizes_and_all_classes(tmp_path):
    names = [
        f"train/{kind}/{number}.png" for kind in ("cat", "dog") for number in range(5)
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    recipe = dataclasses.replace(configs.get_recipe("folder"), eval_split="train")
    source = FolderSource(recipe, str(tmp_path))
    shares = [Shard(index, 3, 3) for index in range(3)]
    read = [
        [bytes(e["name"].numpy()).decode() for e in source.examples("train", None, s)]
        for s in shares
    ]
    assert sorted(sum(read, [])) == [str(tmp_path / name) for name in names]
    assert (
        [source.num_examples("train", share) for share in shares]
        == list(map(len, read))
        == [4, 3, 3]
    )
    assert all(
        any("cat" in name for name in part) and any("dog" in name for name in part)
        for part in read
    )


def test_split_below_one_image_per_machine_is_rejected(data_dir):
    recipe = dataclasses.replace(RECIPE, eval_split="test[:2]", global_batch_size=3)
    with pytest.raises(
        InputError,
        match=r"split 'test\[:2\]' must be at least 3, one per machine, got 2",
    ):
        Dataset.open(recipe, data_dir).eval(Shard(0, 3, 3))
