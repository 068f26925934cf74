# SPDX-License-Identifier: Apache-2.0
"""Files of MNIST's format: orders, splits, machines and classes, and files that are not used."""

import dataclasses
import gzip

import helpers
import numpy as np
import pytest
import tensorflow_datasets as tfds

from lambdanet import cli, configs
from lambdanet.errors import InputError
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.sources import Shard

COUNT = 60
RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    dataset="idx",
    eval_split="test",
    augmentation="none",
    global_batch_size=16,
    epochs=2,
    input_size=8,
    mean=(0.0,),
    std=(1 / 255,),
)


def write(folder, prefix="", count=COUNT, first_label=0, test="t10k"):
    """Writes pictures, each of a different level, the one split compressed and the other not."""
    levels = np.arange(count, dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None], [count, 8, 8])
    labels = (levels % 10 + first_label).astype(np.uint8)
    for split in ("train", test):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            contents = helpers.idx(np.ascontiguousarray(array))
            path = folder / f"{prefix}{split}-{kind}-ubyte"
            if split == "train":
                path = path.with_name(path.name + ".gz")
                contents = gzip.compress(contents)
            path.write_bytes(contents)
    return str(folder)


@pytest.fixture
def root(tmp_path):
    return write(tmp_path)


def levels(batches):
    return [images[:, 4, 4, 0].numpy().round().astype(int) for images, *_ in batches]


def test_an_epoch_has_each_picture_once_with_its_label(root):
    dataset = Dataset.open(RECIPE, root)
    assert dataset.num_examples("train") == dataset.num_examples("test") == COUNT
    assert dataset.class_names == [str(digit) for digit in range(10)]
    batches = [*dataset.train()]
    shown = np.concatenate(levels(batches))
    first, second = shown[:48], shown[48:]
    assert len(set(first)) == len(set(second)) == 48  # full batches alone
    assert list(first) != list(second)
    for images, labels in batches:
        expected = images[:, 4, 4, 0].numpy().round() % 10
        np.testing.assert_array_equal(labels, expected)
    assert np.concatenate(levels(dataset.eval())).tolist() == list(range(COUNT))
    assert dataset.eval_names()[:2] == [f"t10k-images-idx3-ubyte:{n}" for n in (0, 1)]


def test_a_resumed_run_reads_the_same(root):
    whole = levels(Dataset.open(RECIPE, root).train())
    rest = levels(Dataset.open(RECIPE, root).train(2))
    np.testing.assert_array_equal(rest, whole[2:])


def test_parts_of_splits_are_as_in_tfds(root):
    recipe = dataclasses.replace(RECIPE, train_split="train[20:50]")
    dataset = Dataset.open(recipe, root, eval_split="train[80%:]")
    assert dataset.num_examples("train[20:50]") == 30
    assert set(np.concatenate(levels(dataset.train()))) <= set(range(20, 50))
    assert np.concatenate(levels(dataset.eval())).tolist() == list(range(48, 60))
    assert dataset.eval_names()[0] == "train-images-idx3-ubyte.gz:48"


def test_machines_read_disjoint_parts(root):
    source = Dataset.open(RECIPE, root).source
    found = []
    for index in range(3):
        shard = Shard(index, 3)
        part = source.examples("train[:50]", None, shard)
        numbers = [int(example["number"]) for example in part]
        assert len(numbers) == source.num_examples("train[:50]", shard)
        assert len(numbers) in (16, 17)
        found += numbers
    assert found == list(range(50))


def test_names_of_classes(tmp_path):
    folder = write(tmp_path)
    for dataset in ("mnist", "fashion_mnist"):
        recipe = dataclasses.replace(RECIPE, dataset=dataset)
        names = tfds.builder(dataset).info.features["label"].names
        assert Dataset.open(recipe, folder).class_names == names
    (tmp_path / "classes.txt").write_text("".join(f"class {n}\n" for n in range(10)))
    assert Dataset.open(RECIPE, folder).class_names[9] == "class 9"


def test_one_of_several_sets(tmp_path):
    write(tmp_path, "emnist-letters-", 50, test="test")
    write(tmp_path, "emnist-digits-", 40, test="test")
    recipe = dataclasses.replace(RECIPE, dataset="emnist/letters", num_classes=0)
    dataset = Dataset.open(recipe, str(tmp_path))
    assert dataset.num_examples("test") == 50
    with pytest.raises(InputError, match="a folder with one set, got .'emnist-digits'"):
        Dataset.open(RECIPE, str(tmp_path))


IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        (IMAGES, b"no gzip", "cannot be read"),
        (IMAGES, gzip.compress(b"\0" * 1000)[:-9], "cannot be read"),
        (IMAGES, gzip.compress(b"\0\0\x0d\3" + b"\0" * 12), "00000803"),
        (IMAGES, gzip.compress(b""), "00000803"),
        (IMAGES, gzip.compress(b"\0\0\x08\3\0"), "bytes in"),
        (
            IMAGES,
            gzip.compress(helpers.idx(np.zeros([60, 8, 8], np.uint8))[:-1]),
            "3856",
        ),
        (
            IMAGES,
            gzip.compress(helpers.idx(np.zeros([60, 8, 8], np.uint8)) + b"0"),
            "3856",
        ),
        (
            LABELS,
            gzip.compress(helpers.idx(np.zeros([59], np.uint8))),
            "60, as in train",
        ),
        (LABELS, gzip.compress(helpers.idx(np.full([60], 10, np.uint8))), "below 10"),
        (
            LABELS,
            gzip.compress(helpers.idx(np.zeros([60, 8, 8], np.uint8))),
            "00000801",
        ),
        (LABELS, None, "labels of"),
    ],
    # Not the bytes, which have the time.
    ids=range(11),
)
def test_a_damaged_file_is_one_line(tmp_path, capsys, file, contents, message):
    data = tmp_path / "data"
    data.mkdir()
    write(data)
    (data / file).unlink()
    if contents is not None:
        (data / file).write_bytes(contents)
    words = ["--recipe=digits", "--set=dataset=mnist", f"--data_dir={data}"]
    assert cli.main(["train", *words, f"--model_dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_other_mistakes(tmp_path, root):
    with pytest.raises(InputError, match="a folder with train-images-idx3-ubyte"):
        Dataset.open(RECIPE, None)
    with pytest.raises(InputError, match="unknown split"):
        Dataset.open(RECIPE, root).num_examples("validation")
    with pytest.raises(InputError, match="cannot be read"):
        Dataset.open(RECIPE, root).num_examples("train[:50")


def test_without_a_network_the_files_are_named(tmp_path, monkeypatch):
    def fail(self, **options):
        raise ConnectionError("Name or service not known")

    builder = type(tfds.builder("fashion_mnist"))
    monkeypatch.setattr(builder, "download_and_prepare", fail)
    recipe = dataclasses.replace(RECIPE, dataset="fashion_mnist")
    with pytest.raises(OSError, match="known; Debian's package dataset-fashion-mnist"):
        Dataset.open(recipe, str(tmp_path)).num_examples("train")
