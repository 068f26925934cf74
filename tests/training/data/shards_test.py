# SPDX-License-Identifier: Apache-2.0
"""Parts of the data that machines and devices read."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.folder import FolderSource
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"), epochs=3, global_batch_size=20, train_split="train[:200]", input_size=8
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The digits in four files: shards begin and end within some."""
    path = str(tmp_path_factory.mktemp("data"))
    builder = tfds.builder("digits", data_dir=path)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return path


def _arrays(recipe, role, data_dir, shard=None, **initial_step):
    shard = SINGLE_MACHINE if shard is None else Shard(*shard, pad_last_batch=True)
    loaded = getattr(Dataset.open(recipe, data_dir), role)(shard=shard, **initial_step)
    return [tuple(field.numpy() for field in batch) for batch in loaded]


PLAIN = dataclasses.replace(RECIPE, epochs=1, global_batch_size=12, augmentation="none")


@pytest.fixture(scope="module")
def whole(data_dir):
    """The images of an epoch on one machine."""
    return [image.tobytes() for images, _ in _arrays(PLAIN, "train", data_dir) for image in images]


@pytest.mark.parametrize("count", [2, 3])
def test_machines_read_disjoint_parts(data_dir, whole, count):
    parts = [_arrays(PLAIN, "train", data_dir, (index, count, 2 * count)) for index in range(count)]
    assert {len(images) for part in parts for images, _ in part} == {12 // (2 * count)}
    assert {len(part) for part in parts} == {2 * Dataset.open(PLAIN, data_dir).steps_per_epoch}
    read = [[image.tobytes() for images, _ in part for image in images] for part in parts]
    twice = {image for image in whole if whole.count(image) > 1}  # some digits are equal
    for left, right in itertools.combinations(read, 2):
        assert set(left) & set(right) <= twice
    assert len(set().union(*read)) > 185  # of 200; the machines leave out different ones


def test_machine_resumes_within_epoch(data_dir):
    recipe = dataclasses.replace(RECIPE, epochs=2, global_batch_size=20)
    whole = _arrays(recipe, "train", data_dir, (1, 2, 4))  # 10 steps an epoch, of 2 batches on this machine
    rest = _arrays(recipe, "train", data_dir, (1, 2, 4), initial_step=7)
    assert len(rest) == len(whole) - 14
    for (images, labels), (other_images, other_labels) in zip(whole[14:], rest, strict=True):
        np.testing.assert_array_equal(images, other_images)
        np.testing.assert_array_equal(labels, other_labels)


def test_machines_have_different_augmentation(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, [2, 40, 40, 3], np.uint8)
    for kind, number in itertools.product(range(2), range(2)):
        (tmp_path / "train" / str(kind)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[kind]).save(tmp_path / "train" / str(kind) / f"{number}.png")
    small = {"num_classes": 2, "input_size": 8, "global_batch_size": 4, "epochs": 1, "warmup_epochs": 0}
    small["randaugment_layers"] = 0
    recipe = dataclasses.replace(configs.get_recipe("folder"), **small)
    left, right = (_arrays(recipe, "train", str(tmp_path), (index, 2, 2))[0] for index in range(2))
    np.testing.assert_array_equal(left[1], right[1])  # the same two pictures in the same order
    assert np.abs(left[0] - right[0]).max() > 0.1


@pytest.fixture(scope="module")
def evaluated(data_dir):
    """The first images of the evaluation split, in order, on one machine."""
    recipe = dataclasses.replace(RECIPE, eval_split="test[:50]")
    return np.concatenate([pixels for pixels, _ in _arrays(recipe, "eval", data_dir)])


@pytest.mark.parametrize(("images", "count", "replicas"), [(50, 1, 2), (50, 2, 4), (7, 3, 3), (48, 2, 2)])
def test_padded_evaluation_weighs_each_image_once(data_dir, evaluated, images, count, replicas):
    recipe = dataclasses.replace(RECIPE, eval_split=f"test[:{images}]", global_batch_size=12)
    steps = Dataset.open(recipe, data_dir).eval_steps(Shard(0, count, replicas))
    parts = [_arrays(recipe, "eval", data_dir, (index, count, replicas)) for index in range(count)]
    assert {len(part) for part in parts} == {steps * replicas // count}
    assert {batch[0].shape[0] for part in parts for batch in part} == {12 // replicas}
    pixels, _, weights = (np.concatenate(field) for field in zip(*sum(parts, []), strict=True))
    assert weights.sum() == pytest.approx(len(pixels))  # what Keras divides by
    assert sorted(map(bytes, pixels[weights > 0])) == sorted(map(bytes, evaluated[:images]))
    assert len(set(weights[weights > 0])) == 1


def test_folder_shards_have_equal_sizes_and_all_classes(tmp_path):
    names = [f"train/{kind}/{number}.png" for kind in ("cat", "dog") for number in range(5)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    source = FolderSource(configs.get_recipe("folder"), str(tmp_path))
    shares = [Shard(index, 3, 3) for index in range(3)]
    read = [[bytes(e["name"].numpy()).decode() for e in source.examples("train", None, s)] for s in shares]
    assert sorted(sum(read, [])) == [str(tmp_path / name) for name in names]
    assert [source.num_examples("train", share) for share in shares] == list(map(len, read)) == [4, 3, 3]
    assert all(any("cat" in name for name in part) and any("dog" in name for name in part) for part in read)


def test_split_below_one_image_per_machine_is_rejected(data_dir):
    recipe = dataclasses.replace(RECIPE, eval_split="test[:2]", global_batch_size=3)
    with pytest.raises(
        InputError, match=r"images in split 'test\[:2\]' must be at least 3, one per machine, got 2"
    ):
        Dataset.open(recipe, data_dir).eval(Shard(0, 3, 3))
