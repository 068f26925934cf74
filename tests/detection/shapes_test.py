# SPDX-License-Identifier: Apache-2.0
"""The synthetic data set: masks of visible pixels, files for COCO and Model Garden, atomic writing."""

import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from refusals import refused
from refused_commands import assert_refused

from lambdanet.core import command_line
from lambdanet.detection import shapes
from lambdanet.detection.data import drawn_shapes
from lambdanet.detection.data.drawn_shapes import NUM_CLASSES
from lambdanet.detection.data.masks import mask_to_polygons
from lambdanet.detection.data.shape_files import write_shapes

TRAIN, VAL = 12, 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_shapes(
        tmp_path_factory.mktemp("data") / "shapes", TRAIN, VAL, num_shards=2
    )


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_polygons_are_exact(mask):
    outlines = mask_to_polygons(mask)
    if mask.any():
        encoded = coco_masks.merge(coco_masks.frPyObjects(outlines, *mask.shape))
        assert np.array_equal(coco_masks.decode(encoded), mask)
    else:
        assert outlines == []


def test_masks_of_overlapping_objects_are_disjoint():
    image, objects = drawn_shapes.draw_scene((0, 1))
    assert image.dtype == np.uint8 and all(
        item.mask.shape == image.shape[:2] for item in objects
    )
    assert sum(item.mask.astype(int) for item in objects).max() == 1
    hidden = [item for item in objects if item.mask.sum() < item.area]
    assert hidden and objects[-1].mask.sum() == objects[-1].area
    assert all(
        item.mask.sum() >= drawn_shapes.MIN_VISIBLE * item.area for item in objects
    )


@pytest.mark.parametrize(("split", "count"), [("train", TRAIN), ("val", VAL)])
def test_pycocotools_reads_the_annotations(dataset, split, count, capsys):
    """Boxes and areas agree with the masks; there are images without objects."""
    coco = COCO(os.path.join(dataset, "annotations", f"instances_{split}.json"))
    capsys.readouterr()
    assert len(coco.imgs) == count and [c["name"] for c in coco.cats.values()] == list(
        drawn_shapes.CLASSES
    )
    for annotation in coco.anns.values():
        mask = coco.annToMask(annotation).astype(bool)
        rows, columns = np.nonzero(mask)
        box = [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
        assert annotation["bbox"] == box and annotation["area"] == mask.sum()
    of_images = [coco.imgToAnns[number] for number in coco.imgs]
    assert any(not found for found in of_images)
    areas = [a["area"] for a in coco.anns.values()]
    assert min(areas) < 32**2 < max(areas)
    modes = set()
    for entry in coco.imgs.values():
        with Image.open(Path(dataset, split, entry["file_name"])) as image:
            assert image.format == "JPEG"
            assert image.size == (entry["width"], entry["height"])
            modes.add(image.mode)
    assert split == "val" or modes == {"L", "RGB"}


def test_records_equal_the_annotations(dataset):
    """Read with Model Garden's decoder, written by its converter."""
    from lambdanet.detection import model_garden  # noqa: F401  first, to hide tensorflow-text

    # isort: split
    from official.vision.dataloaders.tf_example_decoder import TfExampleDecoder

    coco = COCO(os.path.join(dataset, "annotations", "instances_train.json"))
    files = tf.io.gfile.glob(
        os.path.join(dataset, "tfrecords", "train-*-of-00002.tfrecord")
    )
    decoder = TfExampleDecoder(include_mask=True)
    decoded = [decoder.decode(record) for record in tf.data.TFRecordDataset(files)]
    assert {
        int(example["source_id"].numpy()) for example in decoded
    } == coco.imgs.keys()
    for example in decoded:
        annotations = coco.imgToAnns[int(example["source_id"].numpy())]
        assert example["groundtruth_classes"].numpy().tolist() == [
            a["category_id"] for a in annotations
        ]
        for mask, annotation in zip(
            example["groundtruth_instance_masks"], annotations, strict=True
        ):
            assert np.array_equal(mask.numpy(), coco.annToMask(annotation))


def test_config_file_names_the_files(dataset, tmp_path):
    from lambdanet.detection.configs import resolve

    file = os.path.join(dataset, "config.yaml")
    params = resolve.resolve("maskrcnn_lambda_resnet_shapes", [file])
    task = params.task
    assert task.model.num_classes == NUM_CLASSES == 1 + len(drawn_shapes.CLASSES)
    for data in (task.train_data, task.validation_data):
        assert len(tf.io.gfile.glob(data.input_path)) == 2
    assert task.annotation_file == os.path.join(
        dataset, "annotations", "instances_val.json"
    )
    resolve.check_experiment(params, "eval")
    text = Path(task.annotation_file).read_text()
    swapped = tmp_path / "swapped.json"
    swapped.write_text(text, encoding="utf-8-sig")
    task.annotation_file = str(swapped)
    with refused("annotation_file must be JSON in UTF-8 without a byte order mark"):
        resolve.check_experiment(params, "eval")
    content = json.loads(text)
    for category in content["categories"]:
        category["id"] = NUM_CLASSES - category["id"]
    swapped.write_text(json.dumps(content))
    message = "swapped.json must be 'disc', as in task.validation_data, got 'ring'"
    with refused(message):
        resolve.check_experiment(params, "eval")


def test_larger_data_set_begins_with_the_smaller_one(dataset, tmp_path):
    small, other = (
        Path(write_shapes(tmp_path / str(seed), train=2, val=1, seed=seed))
        for seed in (0, 1)
    )
    for path in ("train/000002.jpg", "val/000001.jpg"):
        expected = Path(dataset, path).read_bytes()
        assert (small / path).read_bytes() == expected
        assert (other / path).read_bytes() != expected


def test_failed_write_leaves_nothing(dataset, tmp_path, monkeypatch):
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("lambdanet.detection.data.annotations.write_records", full)
    with refused("cannot be written: .*No space left"):
        write_shapes(tmp_path / "shapes", train=1, val=1)
    assert os.listdir(tmp_path) == []


def test_shapes_program(tmp_path, capsys):
    folder = tmp_path / "shapes"
    words = [f"--out={folder}", "--train=1", "--val=1"]
    assert command_line.main(shapes.COMMAND, words) == 0
    assert str(folder) in capsys.readouterr().out
    assert (folder / "annotations").exists()
    for changes, message in (
        ([], "is not empty"),
        (["--train=0"], "train must be a positive integer, got 0"),
    ):
        status = command_line.main(shapes.COMMAND, words[:1] + changes)
        assert_refused(status, message, capsys)
