# SPDX-License-Identifier: Apache-2.0
"""The data set of shapes: masks of what is seen, files as COCO and Model Garden want them, all or nothing."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO

from lambdanet.detection import shapes
from lambdanet.detection.data import scenes
from lambdanet.detection.data.polygons import polygons, run_lengths
from lambdanet.detection.data.shapes import NUM_CLASSES, write_shapes
from lambdanet.errors import InputError

TRAIN, VAL = 12, 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("data") / "shapes", TRAIN, VAL, num_shards=2)


def _instances(dataset, split):
    with open(os.path.join(dataset, "annotations", f"instances_{split}.json")) as file:
        return json.load(file)


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_polygons_and_run_lengths_are_exact(mask):
    outlines = polygons(mask)
    if mask.any():
        encoded = coco_masks.merge(coco_masks.frPyObjects(outlines, *mask.shape))
        assert np.array_equal(coco_masks.decode(encoded), mask)
    else:
        assert outlines == []
    encoded = coco_masks.frPyObjects(run_lengths(mask), *mask.shape)
    assert np.array_equal(coco_masks.decode(encoded), mask)


def test_a_hole_is_cut_out_of_the_polygon_around_it():
    mask = np.ones([5, 6], bool)
    mask[2, 2:4] = False
    (outline,) = polygons(mask)
    assert len(outline) == 2 * (4 + 6)  # four corners, from the first to the hole, around it and back


def test_of_overlapping_objects_each_pixel_belongs_to_the_nearest():
    image, things = scenes.scene((0, 1))
    assert image.dtype == np.uint8 and all(thing.mask.shape == image.shape[:2] for thing in things)
    assert sum(thing.mask.astype(int) for thing in things).max() == 1
    hidden = [thing for thing in things if thing.mask.sum() < thing.whole]
    assert hidden and things[-1].mask.sum() == things[-1].whole
    assert all(thing.mask.sum() >= scenes.MIN_VISIBLE * thing.whole for thing in things)


def test_an_object_has_one_color_where_it_is_seen_and_not_where_it_is_hidden():
    image, things = scenes.scene((0, 1))
    for thing in things:
        inside = np.median(image[thing.mask], axis=0)
        differing = np.abs(image[thing.mask] - inside).max(axis=1) > 25  # noise has a deviation of 4
        assert differing.mean() < 0.5 and np.abs(image[~thing.mask].mean(axis=0) - inside).max() > 5


@pytest.mark.parametrize("name", scenes.CLASSES)
def test_the_area_of_a_shape(name):
    """Against the formula of each shape with a radius of 40."""
    random = np.random.default_rng(0)
    coverage = scenes._draw(name, 40.0, (60.0, 55.0), random, 110, 120)
    share = {
        "disc": np.pi,
        "ring": np.pi * (1 - 0.55**2),
        "square": 2,
        "triangle": 3 * np.sqrt(3) / 4,
        "star": 10 * 0.5 * 0.45 * np.sin(np.pi / 5),
    }[name]
    assert coverage.sum() == pytest.approx(share * 40**2, rel=0.04)


def test_a_picture_depends_on_its_seed_alone():
    first, _ = scenes.scene((3, 4), crowd=True)
    assert np.array_equal(first, scenes.scene((3, 4), crowd=True)[0])
    other, _ = scenes.scene((3, 5), crowd=True)
    assert first.shape != other.shape or not np.array_equal(first, other)


@pytest.mark.parametrize("split, count", [("train", TRAIN), ("val", VAL)])
def test_pycocotools_reads_the_annotations(dataset, split, count, capsys):
    """Boxes and areas are those of the masks, and every kind of picture is there."""
    coco = COCO(os.path.join(dataset, "annotations", f"instances_{split}.json"))
    capsys.readouterr()
    assert len(coco.imgs) == count and [c["name"] for c in coco.cats.values()] == list(scenes.CLASSES)
    for annotation in coco.anns.values():
        mask = coco.annToMask(annotation).astype(bool)
        rows, columns = np.nonzero(mask)
        box = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
        assert annotation["bbox"] == box and annotation["area"] == mask.sum()
        assert isinstance(annotation["segmentation"], dict if annotation["iscrowd"] else list)
    of_images = [coco.imgToAnns[number] for number in coco.imgs]
    assert any(not found for found in of_images)
    assert any(found and all(a["iscrowd"] for a in found) for found in of_images)
    areas = [a["area"] for a in coco.anns.values() if not a["iscrowd"]]
    assert min(areas) < 32**2 < max(areas)


def test_pictures_are_jpeg_of_the_size_that_is_written_down_and_one_is_grey(dataset):
    modes = set()
    for entry in _instances(dataset, "train")["images"]:
        with Image.open(os.path.join(dataset, "train", entry["file_name"])) as image:
            assert (image.format, image.size) == ("JPEG", (entry["width"], entry["height"]))
            modes.add(image.mode)
    assert modes == {"L", "RGB"}


def test_the_records_hold_what_the_annotations_do(dataset):
    """Read with Model Garden's decoder; its converter has written them."""
    from lambdanet.detection import model_garden  # noqa: F401  before what else is used of Model Garden

    # isort: split
    from official.vision.dataloaders.tf_example_decoder import TfExampleDecoder

    coco = COCO(os.path.join(dataset, "annotations", "instances_train.json"))
    files = tf.io.gfile.glob(os.path.join(dataset, "tfrecords", "train-*-of-00002.tfrecord"))
    decoder = TfExampleDecoder(include_mask=True)
    decoded = [decoder.decode(record) for record in tf.data.TFRecordDataset(files)]
    assert {int(example["source_id"].numpy()) for example in decoded} == coco.imgs.keys()
    for example in decoded:
        annotations = coco.imgToAnns[int(example["source_id"].numpy())]
        assert example["groundtruth_classes"].numpy().tolist() == [a["category_id"] for a in annotations]
        crowds = [bool(a["iscrowd"]) for a in annotations]
        assert example["groundtruth_is_crowd"].numpy().tolist() == crowds
        for mask, annotation in zip(example["groundtruth_instance_masks"], annotations, strict=True):
            assert np.array_equal(mask.numpy(), coco.annToMask(annotation))


def test_its_configuration_leads_to_its_files(dataset):
    from lambdanet.detection.configs import resolve

    file = os.path.join(dataset, "config.yaml")
    task = resolve.resolve("maskrcnn_lambda_resnet_shapes", [file]).task
    assert task.model.num_classes == NUM_CLASSES
    for data in (task.train_data, task.validation_data):
        assert len(tf.io.gfile.glob(data.input_path)) == 2
    assert task.annotation_file == os.path.join(dataset, "annotations", "instances_val.json")


def test_a_larger_set_begins_with_the_smaller_one(dataset, tmp_path):
    small = write_shapes(tmp_path / "small", train=2, val=1)
    for path in ("train/000002.jpg", "val/000001.jpg"):
        with open(os.path.join(small, path), "rb") as one, open(os.path.join(dataset, path), "rb") as two:
            assert one.read() == two.read()
    other = write_shapes(tmp_path / "other", train=2, val=1, seed=1)
    with open(os.path.join(small, path), "rb") as one, open(os.path.join(other, path), "rb") as two:
        assert one.read() != two.read()


def test_what_fails_leaves_nothing(dataset, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lambdanet.detection.data.annotations.write_records", fail)
    with pytest.raises(InputError, match="cannot be written: .*No space left"):
        write_shapes(tmp_path / "shapes", train=1, val=1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "given, message",
    [({"train": 0}, "train must be a positive integer, got 0"), ({"seed": -1}, "seed=-1 cannot be used")],
)
def test_numbers_out_of_range_are_refused(given, message, tmp_path):
    with pytest.raises(InputError, match=message):
        write_shapes(tmp_path / "shapes", **given)


def test_the_program(tmp_path, capsys):
    out = tmp_path / "shapes"
    assert shapes.command.main(shapes.COMMAND, [f"--out={out}", "--train=1", "--val=1"]) == 0
    assert str(out) in capsys.readouterr().out and (out / "annotations" / "instances_val.json").exists()
    assert shapes.command.main(shapes.COMMAND, [f"--out={out}"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("lambdanet.detection.shapes: error: ") and "is not empty" in line


def test_help_needs_no_tensorflow():
    program = "import runpy, sys; sys.argv = ['shapes', '--help']\ntry:\n"
    program += " runpy.run_module('lambdanet.detection.shapes', run_name='__main__')\n"
    program += "except SystemExit as end: print(end.code, 'tensorflow' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout.startswith("usage: python -m lambdanet.detection.shapes --out=DIR")
    assert (shown.stdout.splitlines()[-1], shown.stderr) == ("0 False", "")


def test_the_number_of_classes_counts_the_background():
    assert NUM_CLASSES == 1 + len(scenes.CLASSES)
