# SPDX-License-Identifier: Apache-2.0
"""A picture has the same pixels on every route: training, evaluation, records and predictions."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from picture_table import AS_THEY_ARE, PICTURES, SIDE, saved
from PIL import Image
from refusals import refused
from training_runs import open_dataset

from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.image_bytes import decode
from lambdanet.training.data.image_files import as_decodable, read_image

NAMES = list(PICTURES)
REFUSED = [name for name, row in PICTURES.items() if row.expected is None]
READ = [name for name in NAMES if name not in REFUSED]
PLAIN = [name for name, row in PICTURES.items() if row.plain]


def test_converted_picture_has_no_time():
    file = saved(Image.new("LAB", (8, 8)), "TIFF")
    assert b"iCCP" not in as_decodable(file)  # a profile of this second


def central(image):
    """The central square, the input of a model of this size."""
    top, left = ((side - SIDE) // 2 for side in image.shape[:2])
    return image[top : top + SIDE, left : left + SIDE]


def check(found, names, whole=False):
    """Compares images with the expected ones, and lists all differences."""
    assert sorted(found) == sorted(names)
    wrong = {}
    for name, image in found.items():
        row = PICTURES[name]
        expected = (row.expected if whole else central(row.expected)).astype(int)
        difference = (
            np.abs(np.asarray(image) - expected).max()
            if image.shape == expected.shape
            else "shape"
        )
        if isinstance(difference, str) or difference > row.tolerance + 0.01:
            wrong[name] = difference
    assert not wrong


RECIPE = dataclasses.replace(
    AS_THEY_ARE, num_classes=len(PICTURES), global_batch_size=len(PICTURES)
)


def ending(name):
    return {"JPEG": ".jpg", "TIFF": ".tiff"}.get(
        name.split()[0], f".{name.split()[0].lower()}"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each picture has its own class."""
    root = tmp_path_factory.mktemp("folder")
    for index, (name, row) in enumerate(PICTURES.items()):
        path = root / f"train/{index:03d}" / f"picture{ending(name)}"
        path.parent.mkdir(parents=True)
        path.write_bytes(row.contents)
    return root


@pytest.fixture(scope="module")
def paths(folder):
    return dict(zip(NAMES, sorted((folder / "train").glob("*/*")), strict=True))


@pytest.fixture(scope="module")
def record_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "train-00000-of-00001"
    pairs = enumerate(PICTURES.values())
    contents = [records.encode_record(row.contents, index) for index, row in pairs]
    records.write_records(str(path), contents)
    return path


def loaded(recipe, role, data_dir):
    """Returns the images of a dataset by name, and the names of unreadable ones."""
    bad = BadRecords(len(PICTURES))
    found = {}
    for images, labels in getattr(open_dataset(recipe, data_dir, bad), role)():
        found.update(
            {
                NAMES[label]: 255 * image
                for image, label in zip(images.numpy(), labels, strict=True)
            }
        )
    return found, sorted(bad.names)


def test_predict_reads_complete_picture(paths):
    check({name: read_image(paths[name]) for name in READ}, READ, whole=True)


@pytest.mark.parametrize("name", REFUSED)
def test_predict_rejects_values_without_range(paths, name):
    with refused(r"got .*; its pixels are (floats|32-bit integers)"):
        read_image(paths[name])


@pytest.mark.parametrize(
    ("dataset", "role"), [("folder", "train"), ("tfrecord", "eval")]
)
def test_datasets(folder, paths, record_file, dataset, role):
    """Records with other pictures than TensorFlow decodes are bad ones."""
    recipe = dataclasses.replace(RECIPE, dataset=dataset)
    if dataset == "folder":
        found, bad = loaded(recipe, role, folder)
        check(found, READ)
        assert bad == sorted(str(paths[name]) for name in REFUSED)
    else:
        found, bad = loaded(recipe, role, record_file.parent)
        check(found, PLAIN)
        places = [place for place, name in enumerate(NAMES) if name not in PLAIN]
        assert bad == sorted(f"{record_file.name}:{place}" for place in places)


def test_pictures_are_written_to_records_as_they_are_read():
    """As those of pseudo-labels are, which training decodes."""
    found = {}
    for name in READ:
        contents = as_decodable(PICTURES[name].contents)
        found[name] = decode(tf.constant(contents)).numpy()
    check(found, READ, whole=True)
