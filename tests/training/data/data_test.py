# SPDX-License-Identifier: Apache-2.0
"""The digits dataset of TFDS, and batches that depend only on the recipe and the step."""

import dataclasses
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn import datasets

from lambdanet import cli, configs
from lambdanet.errors import InputError
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"), epochs=3, global_batch_size=20, train_split="train[:200]", input_size=8
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The digits in four files, so that files are shuffled too, prepared without a network."""
    path = str(tmp_path_factory.mktemp("data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", _no_network)
        patch.setattr(socket.socket, "connect", _no_network)
        builder = tfds.builder("digits", data_dir=path)
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return path


def _no_network(*args, **kwargs):
    raise AssertionError("the digits need no network")


def _batches(recipe, role, data_dir, **kwargs):
    return [(x.numpy(), y.numpy()) for x, y in getattr(Dataset.open(recipe, data_dir), role)(**kwargs)]


@pytest.fixture(scope="module")
def whole(data_dir):
    """All batches of training."""
    return _batches(RECIPE, "train", data_dir)


def _assert_equal(left, right):
    assert len(left) == len(right)
    for (images, labels), (other_images, other_labels) in zip(left, right, strict=True):
        np.testing.assert_array_equal(labels, other_labels)
        np.testing.assert_array_equal(images, other_images)


def test_digits_are_those_of_scikit_learn(data_dir):
    splits = tfds.load("digits", data_dir=data_dir, as_supervised=True)
    images, labels = datasets.load_digits(return_X_y=True)
    source = sorted(
        (label, tuple(np.round(image * 255 / 16))) for image, label in zip(images, labels, strict=True)
    )
    pairs = {name: list(split.as_numpy_iterator()) for name, split in splits.items()}
    assert {name: len(pair) for name, pair in pairs.items()} == {"train": 1442, "test": 355}
    prepared = sorted((label, tuple(image.ravel())) for pair in pairs.values() for image, label in pair)
    assert prepared == source
    in_test = np.bincount([label for _, label in pairs["test"]]) / np.bincount(labels)
    assert in_test.min() > 0.18 and in_test.max() <= 0.2


def test_class_names_and_counts(data_dir):
    assert Dataset.open(RECIPE, data_dir).class_names == list("0123456789")
    assert Dataset.open(RECIPE, data_dir).num_examples(RECIPE.train_split) == 200
    assert Dataset.open(RECIPE, data_dir).num_examples(RECIPE.eval_split) == 355
    assert Dataset.open(dataclasses.replace(RECIPE, global_batch_size=30), data_dir).steps_per_epoch == 6


def test_class_names_without_data_on_disk(tmp_path):
    assert Dataset.open(RECIPE, str(tmp_path)).class_names == list("0123456789")
    assert not list(tmp_path.iterdir())


def test_unwritable_home_is_named_with_flag(tmp_path, monkeypatch, capsys):
    (tmp_path / "home").touch()
    default = f"{tmp_path / 'home'}/tensorflow_datasets"
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", default)  # of $HOME when TFDS is imported
    assert cli.main(["train", "--recipe=digits", f"--model_dir={tmp_path / 'run'}"]) == 2
    folder = f"{default}/digits"
    reason = "(Not a directory); --data_dir names another folder"
    said = capsys.readouterr().err
    assert said == f"lambdanet: error: dataset digits cannot be written to {folder!r} {reason}\n"
    assert not (tmp_path / "run").exists()


def test_unwritable_data_dir_is_named():
    with pytest.raises(InputError, match="digits cannot be written to '/proc/digits' .*; --data_dir names"):
        Dataset.open(RECIPE, "/proc").num_examples(RECIPE.train_split)


def test_evaluation_is_in_order_with_last_partial_batch(data_dir):
    first, again = (_batches(RECIPE, "eval", data_dir) for _ in range(2))
    _assert_equal(first, again)
    assert [len(labels) for _, labels in first] == 17 * [20] + [15]
    assert first[0][0].shape == (20, 8, 8, 3) and first[0][0].dtype == np.float32


def test_training_has_full_batches_in_all_epochs(data_dir):
    batches = _batches(dataclasses.replace(RECIPE, global_batch_size=30), "train", data_dir)
    assert [len(labels) for _, labels in batches] == 3 * 6 * [30]


def test_epochs_have_each_image_once_in_another_order(data_dir):
    batches = _batches(dataclasses.replace(RECIPE, augmentation="none"), "train", data_dir)
    epochs = [
        [image.tobytes() for images, _ in batches[10 * e : 10 * e + 10] for image in images] for e in range(3)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert len(set(epochs[0])) > 195  # except equal images
    for left, right in [(0, 1), (0, 2), (1, 2)]:
        assert np.mean([a == b for a, b in zip(epochs[left], epochs[right], strict=True)]) < 0.1


@pytest.mark.parametrize("shard", [SINGLE_MACHINE, Shard(1, 2, 4)])
def test_repeated_augmentation_has_copies_in_a_row(data_dir, shard):
    """Without augmentation, an epoch repeats each image of the pass three times."""
    plain = dataclasses.replace(RECIPE, augmentation="none", epochs=2)
    repeated = dataclasses.replace(plain, repeated_augmentation=3, epochs=4)
    once, thrice = (
        [
            image.tobytes()
            for images, _ in _batches(recipe, "train", data_dir, shard=shard)
            for image in images
        ]
        for recipe in (plain, repeated)
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
    assert min(np.abs(a - b).max() for a, b in [(first, second), (first, third), (second, third)]) > 0.1
    for step in (7, 13):  # within the copies of an image: 7 x 20 = 46 x 3 + 2
        _assert_equal(batches[step:], _batches(recipe, "train", data_dir, initial_step=step))


def test_resumed_batches_equal_uninterrupted_ones(data_dir, whole):
    _assert_equal(whole[20:], _batches(RECIPE, "train", data_dir, initial_step=20))


def test_first_images_are_those_of_first_batch(data_dir, whole):
    images, _ = whole[0]
    np.testing.assert_array_equal(Dataset.open(RECIPE, data_dir).first_images(16), images[:16])


def test_batches_depend_on_recipe_seed_only(data_dir, whole):
    tf.random.set_seed(1)
    _assert_equal(whole, _batches(RECIPE, "train", data_dir))
    other = Dataset.open(dataclasses.replace(RECIPE, seed=1), data_dir).train().take(3)
    assert any((a[1] != b[1].numpy()).any() for a, b in zip(whole[:3], other, strict=True))


def test_augmentation_differs_between_epochs(data_dir):
    one = dataclasses.replace(RECIPE, train_split="train[:1]", global_batch_size=1)
    images = [images for images, _ in _batches(one, "train", data_dir)]
    assert np.abs(images[0] - images[1]).max() > 0.1 and np.abs(images[1] - images[2]).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "digts"}, "unknown dataset 'digts'; did you mean digits"),
        ({"dataset": "huggingface:x"}, "'huggingface:x' cannot be loaded: it is not one of TFDS itself"),
        ({"dataset": "digits:9.9.9"}, "'digits:9.9.9' cannot be loaded: .*only: 1.0.0"),
        ({"dataset": "digits/large"}, "'digits/large' cannot be loaded"),
        ({"dataset": "two words"}, "'two words' cannot be loaded"),
        ({"dataset": "coco"}, "features of dataset coco must be an image named .*, got .'image'"),
        ({"dataset": "imagenet2012", "num_classes": 1000}, "imagenet2012 has to be downloaded by hand"),
        ({"num_classes": 9}, "num_classes must be 10, as in dataset digits, got 9"),
        (
            {"mean": (0.5, 0.5), "std": (1, 1), "dataset": "cifar10"},
            "channels of mean and std must be 3, as in dataset cifar10, got 2",
        ),
        ({"eval_split": "tets"}, "unknown split of dataset digits 'tets'; did you mean test"),
        ({"eval_split": "test[x:]"}, r"split 'test\[x:\]' of digits cannot be read"),
        ({"eval_split": "test[:0]"}, r"must be one with images, got 'test\[:0\]'"),
    ],
)
def test_unusable_dataset_is_rejected(data_dir, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        Dataset.open(dataclasses.replace(RECIPE, **changes), data_dir).eval()
    assert "\n" not in str(caught.value)


def test_missing_data_dir_is_rejected(tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(InputError, match=f"data_dir must be an existing folder, got '{missing}'"):
        Dataset.open(RECIPE, missing).train()
    assert not list(tmp_path.iterdir())


def test_data_dir_with_tilde(data_dir, monkeypatch):
    monkeypatch.setenv("HOME", data_dir)
    assert Dataset.open(RECIPE, "~").num_examples(RECIPE.train_split) == 200


def test_split_below_one_batch_is_rejected(data_dir):
    with pytest.raises(InputError, match="at most 200, .*, got 201; such as --set=global_batch_size=32"):
        assert Dataset.open(dataclasses.replace(RECIPE, global_batch_size=201), data_dir).steps_per_epoch
