# SPDX-License-Identifier: Apache-2.0
"""Damaged images are skipped, named and counted; too many, or a label outside of the classes, end the run."""

from dataclasses import replace

import pytest
import tensorflow as tf
from helpers import damage_record
from picture_sources import (
    RECIPE,
    assert_good_in_place,
    numbers,
    write_folder,
    write_tfds,
    write_tfrecord,
)
from refusals import refused
from small_models import linear_model
from training_runs import open_dataset

from lambdanet.training.data.bad_records import BadRecords, prepare_in_groups
from lambdanet.training.evaluate import outputs
from lambdanet.training.train import train

SMALL = replace(RECIPE, global_batch_size=4, epochs=2, warmup_epochs=0)
FOLDER = replace(SMALL, dataset="folder", eval_split="validation", num_classes=3)
COUNT = 18  # in each of the two splits: four full batches, and two images


@pytest.fixture
def pictures(tmp_path):
    write_folder(tmp_path, COUNT)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The numbers of all batches of training without damaged pictures."""
    root = tmp_path_factory.mktemp("whole")
    write_folder(root, COUNT)
    return numbers(open_dataset(FOLDER, root).train())


def _damage(pictures, split, *indices):
    paths = [next((pictures / split).glob(f"*/{index:02d}.png")) for index in indices]
    for path in paths:
        path.write_bytes(path.read_bytes()[:40])
    return [str(path) for path in paths]


@pytest.mark.parametrize("damaged", [(0, 3, 6, 9), (4, 17)])
def test_evaluation_skips_and_names_bad_images(pictures, capfd, damaged):
    """All of the first batch, or some of two batches."""
    paths = _damage(pictures, "validation", *damaged)
    bad = BadRecords(limit=4)
    shown = numbers(open_dataset(FOLDER, pictures, bad).eval())
    order = sorted(range(COUNT), key=lambda number: number % 3)  # by class
    assert sum(shown, []) == [number for number in order if number not in damaged]
    assert sorted(bad.names) == sorted(paths)
    lines = capfd.readouterr().out.splitlines()
    said = [line for line in lines if line.startswith("skipped ")]
    assert len(said) == len(damaged)
    assert said[-1].endswith(f"({len(damaged)} of at most 4 bad records)")


def test_training_batches_keep_place_and_size(pictures, whole, capfd):
    paths = _damage(pictures, "train", 2, 5, 11)
    bad = BadRecords(limit=3)
    shown = numbers(open_dataset(FOLDER, pictures, bad).train())
    assert [len(batch) for batch in shown] == [4] * 8
    assert_good_in_place(shown, whole, (2, 5, 11))
    assert sorted(bad.names) == paths
    assert capfd.readouterr().out.count("skipped ") == 3


def test_resumed_run_does_not_decode_earlier_images(pictures, whole):
    _damage(pictures, "train", *whole[0])
    bad = BadRecords(limit=0)
    rest = numbers(open_dataset(FOLDER, pictures, bad, epochs=1).train(1))
    assert rest == whole[1:4] and not bad.names


def test_first_images_are_those_that_can_be_read(pictures, whole):
    first, second, *_ = whole
    _damage(pictures, "train", first[1], *second)
    (shown,) = open_dataset(FOLDER, pictures).first_pairs(8).batch(8)
    rest = [number for number in first if number != first[1]]
    assert numbers([shown]) == [rest]


@pytest.mark.slow
def test_batch_without_valid_images_is_replaced(pictures, whole):
    first, second, *_ = whole
    _damage(pictures, "train", *second)
    bad = BadRecords(limit=4)
    shown = numbers(open_dataset(FOLDER, pictures, bad, epochs=1).train())
    assert shown[:2] == [first, first] and len(bad.names) == 4
    _damage(pictures, "train", *set(range(COUNT)).difference(second))
    bad = BadRecords()
    with (
        refused("none of the 4 images of a batch can be read"),
        bad.as_input_errors(),
    ):
        list(open_dataset(FOLDER, pictures, bad).train())


@pytest.mark.jax
@pytest.mark.slow
def test_train_ends_at_limit(pictures, tmp_path, small_network):
    _damage(pictures, "train", 2, 5)
    message = "^2 records cannot be read, the last of them .*png; max_bad_records is 1"
    with refused(message):
        train(FOLDER, tmp_path / "run", str(pictures), max_bad_records=1)


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
    with refused("2 of 19 files in 'hens' .*; --max_bad_records=5 or more leaves"):
        bad.leave_out(("hens", ["hens/1.heic", "hens/2.heic"], 19))


def test_leave_out_limit_counts_all_folders():
    bad = BadRecords(limit=2)
    cats = ("cats", ["cats/1.heic", "cats/2.heic"], 3)
    dogs = ("dogs", ["dogs/1.heic"], 1000)
    bad.leave_out(cats)
    with refused("1 of 1000 files in 'dogs' .*; --max_bad_records=3 or more leaves"):
        bad.leave_out(dogs)
    with refused("2 of 3 files in 'cats' .*; --max_bad_records=3 or more leaves"):
        BadRecords(limit=2).leave_out(cats, dogs)
    with refused("max_bad_records must be an integer from 0, got -1"):
        BadRecords(limit=-1)


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
    with refused(message), bad.as_input_errors():
        list(batches)


@pytest.mark.parametrize(
    ("write", "number", "byte"),
    [(write_tfrecord, 0, 8), (write_tfrecord, 11, 12), (write_tfds, 5, 12)],
)
@pytest.mark.slow
def test_records_from_a_damaged_one_on_are_counted(
    tmp_path, capfd, write, number, byte
):
    recipe = replace(SMALL, **write(tmp_path, 12, files=1))
    (file,) = tmp_path.glob(f"**/*{recipe.eval_split}[-.]*tfrecord*")
    damage_record(file, number, byte)
    bad = BadRecords(limit=12 - number)
    batches = open_dataset(recipe, tmp_path, bad).eval()
    for _ in range(2):
        assert sum(len(labels) for _, labels in batches) == number
    assert set(bad.names) == {f"{file.name}:{lost}" for lost in range(number, 12)}
    assert capfd.readouterr().out.count(f"skipped {file.name}:") == 12 - number
    bad = BadRecords(limit=11 - number)
    message = f"{12 - number} records cannot be read, the last of them {file.name}:"
    with refused(message), bad.as_input_errors():
        list(open_dataset(recipe, tmp_path, bad).eval())


@pytest.mark.parametrize("role", ["train", "eval"])
def test_deleted_record_file_ends_run(tmp_path, role):
    """Training and evaluation notice that a file of an opened dataset is gone; they do not wait for it."""
    write_tfds(tmp_path, 30, files=1)
    bad = BadRecords(limit=20)
    dataset = open_dataset(RECIPE, tmp_path, bad, global_batch_size=24)
    dataset.check()
    batches = getattr(dataset, role)()
    split = getattr(RECIPE, f"{role}_split")
    (file,) = tmp_path.glob(f"**/*{split}*tfrecord*")
    file.unlink()
    message = f"21 records cannot be read, the last of them {file.name}:"
    with refused(message), bad.as_input_errors():
        list(batches)


@pytest.mark.jax
def test_split_without_valid_images_is_rejected(pictures):
    _damage(pictures, "validation", *range(COUNT))
    model = linear_model((8, 8, 3), 3)
    with refused("no image of the split can be read"):
        list(outputs(model.predict_on_batch, open_dataset(FOLDER, pictures).eval()))
