# SPDX-License-Identifier: Apache-2.0
"""Damaged images are skipped, named and counted; too many, or a label outside of the classes, end the run."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import damage_record
from PIL import Image
from programs.small_model import small_model

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords, prepare_in_groups
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.evaluate import measure
from lambdanet.training.train import train

RECIPE = dataclasses.replace(
    configs.get_recipe("folder"),
    **{
        "num_classes": 2,
        "input_size": 8,
        "global_batch_size": 4,
        "epochs": 2,
        "warmup_epochs": 0,
    },
    **{"augmentation": "none", "randaugment_layers": 0},
)
COUNT = 18  # in each of the two splits: four full batches, and two images


@pytest.fixture
def pictures(tmp_path):
    return _write(tmp_path)


def _write(root):
    """Writes gray pictures, each of a different level, which identifies it."""
    for split in ("train", "validation"):
        for index in range(COUNT):
            folder = root / split / ("odd" if index % 2 else "even")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full([8, 8, 3], 10 * index, np.uint8)).save(
                folder / f"{index:02d}.png"
            )
    return root


def _levels(batches):
    """The levels of the pictures in batches."""
    mean, std = RECIPE.mean[0], RECIPE.std[0]
    return [
        [round(float(x[0, 0, 0] * std + mean) * 25.5) for x in images.numpy()]
        for images, _ in batches
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The levels of all batches of training without damaged pictures."""
    return _levels(
        Dataset.open(RECIPE, str(_write(tmp_path_factory.mktemp("whole")))).train()
    )


def _damage(pictures, split, *indices):
    paths = [next((pictures / split).glob(f"*/{index:02d}.png")) for index in indices]
    for path in paths:
        path.write_bytes(path.read_bytes()[:40])
    return [str(path) for path in paths]


@pytest.mark.parametrize("damaged", [(3,), (0, 1, 2), (17,), (0, 9, 10, 17)])
def test_evaluation_skips_and_names_bad_images(pictures, capfd, damaged):
    paths = _damage(pictures, "validation", *damaged)
    bad = BadRecords(limit=4)
    levels = _levels(Dataset.open(RECIPE, str(pictures), bad).eval())
    order = [*range(0, COUNT, 2), *range(1, COUNT, 2)]  # by class
    assert sum(levels, []) == [index for index in order if index not in damaged]
    assert sorted(bad.names) == sorted(paths)
    said = [
        line
        for line in capfd.readouterr().out.splitlines()
        if line.startswith("skipped ")
    ]
    assert len(said) == len(damaged) and said[-1].endswith(
        f"({len(damaged)} of at most 4 bad records)"
    )


def test_training_batches_keep_place_and_size(pictures, whole, capfd):
    paths = _damage(pictures, "train", 2, 5, 11)
    bad = BadRecords(limit=3)
    levels = _levels(Dataset.open(RECIPE, str(pictures), bad).train())
    assert [len(batch) for batch in levels] == [4] * 8
    for batch, undamaged in zip(levels, whole, strict=True):
        good = [level for level in undamaged if level not in (2, 5, 11)]
        assert set(batch) == set(good)  # some of the batch are repeated
        assert [a for a, b in zip(batch, undamaged, strict=True) if b in good] == good
    assert sorted(bad.names) == paths and capfd.readouterr().out.count("skipped ") == 3


@pytest.fixture(scope="module")
def augmented(tmp_path_factory):
    """Returns the augmented batches starting at a step; three pictures are damaged."""
    pictures = _write(tmp_path_factory.mktemp("pictures"))
    _damage(pictures, "train", 2, 5, 11)
    dataset = Dataset.open(
        dataclasses.replace(RECIPE, augmentation="crop_flip"), str(pictures)
    )
    return functools.cache(
        lambda step: [images.numpy() for images, _ in dataset.train(step)]
    )


@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_resumed_batches_with_bad_images_are_equal(augmented, step):
    np.testing.assert_array_equal(augmented(0)[step:], augmented(step))


def test_resumed_run_does_not_decode_earlier_images(pictures, whole):
    recipe = dataclasses.replace(RECIPE, epochs=1)
    _damage(pictures, "train", *whole[0])
    bad = BadRecords(limit=0)
    rest = _levels(Dataset.open(recipe, str(pictures), bad).train(1))
    assert rest == whole[1:4] and not bad.names


def test_first_images_are_those_that_can_be_read(pictures, whole):
    first, second, *_ = whole
    _damage(pictures, "train", first[1], *second)
    shown = Dataset.open(RECIPE, str(pictures)).first_images(8)
    assert _levels([(tf.stack(shown), None)]) == [
        [level for level in first if level != first[1]]
    ]


def test_batch_without_valid_images_is_replaced(pictures, whole):
    first, second, *_ = whole
    _damage(pictures, "train", *second)
    bad = BadRecords(limit=4)
    levels = _levels(
        Dataset.open(dataclasses.replace(RECIPE, epochs=1), str(pictures), bad).train()
    )
    assert levels[:2] == [first, first] and len(bad.names) == 4
    _damage(pictures, "train", *set(range(COUNT)).difference(second))
    bad = BadRecords()
    message = "none of the 4 images of a batch can be read"
    with pytest.raises(InputError, match=message), bad.as_input_errors():
        list(Dataset.open(RECIPE, str(pictures), bad).train())


def test_train_ends_at_limit(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("lambdanet.models.zoo.create_model", small_model)
    _damage(pictures, "train", 2, 5)
    message = (
        "^2 records cannot be read, the last of them .*png; max_bad_records is 1.*$"
    )
    with pytest.raises(InputError, match=message):
        train(RECIPE, tmp_path / "run", str(pictures), max_bad_records=1)


def test_other_errors_are_unchanged():
    with pytest.raises(tf.errors.DataLossError), BadRecords().as_input_errors():
        raise tf.errors.DataLossError(None, None, "a disk")


def test_leave_out_up_to_a_tenth_of_folder(capsys):
    bad = BadRecords()
    for _ in range(2):
        bad.leave_out(("cats", ["cats/1.heic"], 17))
        bad.leave_out(("dogs", ["dogs/1.heic", "dogs/2.heic"], 20))
        bad.leave_out(("cows", [], 3))
    hint = "(HEIC has to be converted, to JPEG for example)"
    assert capsys.readouterr().out.splitlines() == [
        f"left out: 1 of 17 files in 'cats' are no pictures, such as 'cats/1.heic' {hint}",
        f"left out: 2 of 20 files in 'dogs' are no pictures, such as 'dogs/1.heic' {hint}",
    ]
    with pytest.raises(
        InputError,
        match="2 of 19 files in 'hens' .*; --max_bad_records=5 or more leaves",
    ):
        bad.leave_out(("hens", ["hens/1.heic", "hens/2.heic"], 19))


def test_leave_out_limit_counts_all_folders():
    bad = BadRecords(limit=2)
    cats, dogs = (
        ("cats", ["cats/1.heic", "cats/2.heic"], 3),
        ("dogs", ["dogs/1.heic"], 1000),
    )
    bad.leave_out(cats)
    with pytest.raises(
        InputError,
        match="1 of 1000 files in 'dogs' .*; --max_bad_records=3 or more leaves",
    ):
        bad.leave_out(dogs)
    with pytest.raises(
        InputError,
        match="2 of 3 files in 'cats' .*; --max_bad_records=3 or more leaves",
    ):
        BadRecords(limit=2).leave_out(cats, dogs)


def test_negative_limit_is_rejected():
    with pytest.raises(
        InputError, match="max_bad_records must be an integer from 0, got -1"
    ):
        BadRecords(-1)


def _label_alone(example, key):
    return tf.zeros([2, 2, 1]), example["label"]


@pytest.mark.parametrize("label", [-1, 2])
def test_label_outside_of_classes_ends_run(label):
    fields = {
        "name": ["first", "second", "third"],
        "label": tf.constant([0, label, 1], tf.int64),
    }
    examples = tf.data.Dataset.from_tensor_slices(fields)
    bad = BadRecords()
    groups = prepare_in_groups(
        examples.enumerate().map(lambda place, one: (one, place)), _label_alone, 3
    )
    batches = bad.full_batches(groups, 3, num_classes=2)
    message = f"label of record 'second' must be the number of a class, from 0 on, got {label}"
    with pytest.raises(InputError, match=message), bad.as_input_errors():
        list(batches)


def _write_tfrecord(root):
    """Returns the recipe and the evaluated file of 12 records."""
    for split in ("train", "validation"):
        with tf.io.TFRecordWriter(
            str(root / records.shard_name(split, 0, 1))
        ) as writer:
            for number in range(12):
                image = tf.io.encode_png(np.full([8, 8, 3], number, np.uint8)).numpy()
                writer.write(records.encode_record(image, number % 2))
    return dataclasses.replace(RECIPE, dataset="tfrecord"), root / records.shard_name(
        "validation", 0, 1
    )


def _write_digits(root):
    builder = tfds.builder("digits", data_dir=str(root))
    builder.download_and_prepare()
    recipe = dataclasses.replace(
        configs.get_recipe("digits"), eval_split="test[:12]", input_size=8
    )
    return recipe, next(builder.data_path.glob("*test*tfrecord*"))


@pytest.mark.parametrize("write", [_write_tfrecord, _write_digits])
@pytest.mark.parametrize(("number", "byte"), [(0, 8), (5, 12), (11, 12)])
def test_records_from_a_damaged_one_on_are_counted(
    tmp_path, capfd, write, number, byte
):
    recipe, file = write(tmp_path)
    damage_record(file, number, byte)
    bad = BadRecords(limit=12 - number)
    batches = Dataset.open(recipe, str(tmp_path), bad).eval()
    for _ in range(2):
        assert sum(len(labels) for _, labels in batches) == number
    assert set(bad.names) == {f"{file.name}:{lost}" for lost in range(number, 12)}
    assert capfd.readouterr().out.count(f"skipped {file.name}:") == 12 - number
    bad = BadRecords(limit=11 - number)
    message = f"{12 - number} records cannot be read, the last of them {file.name}:"
    with pytest.raises(InputError, match=message), bad.as_input_errors():
        list(Dataset.open(recipe, str(tmp_path), bad).eval())


@pytest.mark.parametrize("split", ["train", "test"])
def test_deleted_record_file_ends_run(tmp_path, split):
    """Training and evaluation notice that a file of an opened dataset is gone; they do not wait for it."""
    recipe = dataclasses.replace(
        configs.get_recipe("digits"), eval_split="test[:100]", input_size=8
    )
    bad = BadRecords(limit=20)
    dataset = Dataset.open(recipe, str(tmp_path), bad)
    dataset.check()
    batches = dataset.eval() if split == "test" else dataset.train()
    (file,) = tmp_path.glob(f"**/*{split}*tfrecord*")
    file.unlink()
    message = f"21 records cannot be read, the last of them {file.name}:"
    with pytest.raises(InputError, match=message), bad.as_input_errors():
        list(batches)


def test_split_without_valid_images_is_rejected(pictures):
    _damage(pictures, "validation", *range(COUNT))
    model = keras.Sequential(
        [keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    with pytest.raises(InputError, match="no image of the split can be read"):
        measure(model, Dataset.open(RECIPE, str(pictures)).eval())
