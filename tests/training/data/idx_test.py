# SPDX-License-Identifier: Apache-2.0
"""Files of MNIST's format: parts of splits, names of classes, and files that are not used."""

import dataclasses
import gzip

import numpy as np
import pytest
import tensorflow_datasets as tfds
from helpers import idx
from picture_sources import CLASSES, COUNT, RECIPE, numbers, write_idx
from refusals import refused

from lambdanet.training.data.dataset import Dataset

IDX = dataclasses.replace(RECIPE, dataset="idx", num_classes=0)
IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


@pytest.fixture
def root(tmp_path):
    write_idx(tmp_path)
    return tmp_path


def test_parts_of_splits_are_as_in_tfds(root):
    dataset = Dataset.open(IDX, str(root), eval_split="train[80%:]")
    assert dataset.num_examples("train[20:50]") == 30
    assert sum(numbers(dataset.eval()), []) == list(range(48, COUNT))
    assert dataset.eval_names()[0] == f"{IMAGES}:48"


def test_names_of_classes(root):
    assert Dataset.open(IDX, str(root)).class_names == ["0", "1", "2"]
    for dataset in ("mnist", "fashion_mnist"):
        recipe = dataclasses.replace(IDX, dataset=dataset)
        names = tfds.builder(dataset).info.features["label"].names
        assert Dataset.open(recipe, str(root)).class_names == names
    (root / "classes.txt").write_text("".join(f"class {n}\n" for n in range(CLASSES)))
    assert Dataset.open(IDX, str(root)).class_names[2] == "class 2"


def test_one_of_several_sets(root):
    for path in sorted(root.iterdir()):
        for name in ("emnist-letters", "emnist-digits"):
            own = path.name.replace("t10k", "test")
            (root / f"{name}-{own}").write_bytes(path.read_bytes())
        path.unlink()
    recipe = dataclasses.replace(IDX, dataset="emnist/letters")
    assert Dataset.open(recipe, str(root)).num_examples("test") == COUNT
    with refused("a folder with one set, got .'emnist-digits'"):
        Dataset.open(IDX, str(root))


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        (IMAGES, b"no gzip", "cannot be read"),
        (IMAGES, gzip.compress(b"\0\0\x0d\3" + b"\0" * 12), "00000803"),
        (IMAGES, gzip.compress(idx(np.zeros([60, 8, 8], np.uint8))[:-1]), "3856"),
        (LABELS, gzip.compress(idx(np.zeros([59], np.uint8))), "60, as in train"),
        (LABELS, gzip.compress(idx(np.full([60], 10, np.uint8))), "below 10"),
        (LABELS, None, "labels of"),
    ],
    # Not the bytes, which have the time.
    ids=range(6),
)
def test_a_damaged_file_is_one_line(root, file, contents, message):
    (root / file).unlink()
    if contents is not None:
        (root / file).write_bytes(contents)
    with refused(message):
        Dataset.open(dataclasses.replace(IDX, dataset="mnist"), str(root)).check()


def test_other_mistakes(root):
    with refused("a folder with train-images-idx3-ubyte"):
        Dataset.open(IDX, None)
    for split, message in (("validation", "unknown split"), ("train[:5", "be read")):
        with refused(message):
            Dataset.open(IDX, str(root)).num_examples(split)


def test_without_a_network_the_files_are_named(tmp_path, monkeypatch):
    def fail(self, **options):
        raise ConnectionError("Name or service not known")

    builder = type(tfds.builder("fashion_mnist"))
    monkeypatch.setattr(builder, "download_and_prepare", fail)
    recipe = dataclasses.replace(IDX, dataset="fashion_mnist")
    with pytest.raises(OSError, match="known; Debian's package dataset-fashion-mnist"):
        Dataset.open(recipe, str(tmp_path)).num_examples("train")
