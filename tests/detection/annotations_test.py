# SPDX-License-Identifier: Apache-2.0
"""Annotation files: checks, with errors of one line that name the file and the annotation."""

import copy
import json

import pytest
from PIL import Image
from refusals import refused
from refused_commands import assert_refused

from lambdanet.detection import check
from lambdanet.detection.data import annotations

MASK = {"size": [10, 20], "counts": [0, 200]}
SQUARE = [[2, 1, 8, 1, 8, 5, 2, 5]]
FRACTIONS = {"bbox": [0.1, 0.1, 0.3, 0.4], "segmentation": [[0.2] * 6]}
GOOD = {
    "images": [{"id": 7, "file_name": "seven.jpg", "height": 10, "width": 20}],
    "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
    "annotations": [
        dict(
            id=40,
            image_id=7,
            category_id=3,
            iscrowd=0,
            area=24,
            bbox=[2, 1, 6, 4],
            segmentation=SQUARE,
        ),
        dict(
            id=41,
            image_id=7,
            category_id=1,
            iscrowd=1,
            area=200,
            bbox=[0, 0, 20, 10],
            segmentation=MASK,
        ),
    ],
}


def _write(tmp_path, content):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content), encoding="utf-8-sig")
    return path


def _changed(key, index, **changes):
    content = copy.deepcopy(GOOD)
    content[key][index].update(changes)
    return content


def _object(index=0, **changes):
    return _changed("annotations", index, **changes)


def test_check_counts_a_correct_file(tmp_path):
    Image.new("RGB", (20, 10)).save(tmp_path / "seven.jpg")
    path = _write(tmp_path, GOOD)
    found = annotations.check_annotations(path, tmp_path, num_classes=4)
    assert found == {
        "images": 1,
        "objects": 1,
        "crowds": 1,
        "categories": 2,
        "left_out": 0,
    }
    names = ["background", "cat", "2", "dog", "4"]
    assert annotations.read_class_names(path, 5) == names


@pytest.mark.parametrize("box", [[2, 1, 0, 4], [15, 1, 5.4, 4]])
def test_check_counts_boxes_that_the_converter_drops(box, tmp_path):
    """COCO has some: empty ones, and ones that cross the edge by less than a pixel."""
    path = _write(tmp_path, _object(bbox=box, segmentation=None))
    assert annotations.check_annotations(path, masks=False)["left_out"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            _object(segmentation=None),
            r"40: segmentation must be polygons .* got None; .*include_mask=false",
        ),
        (
            _object(segmentation=[[1, 2, 3, 4]]),
            r"segmentation must be polygons .* got \[\[1, 2, 3, 4\]\]$",
        ),
        (
            _object(segmentation=MASK),
            r"40: segmentation must be polygons .* got {'size': .*need iscrowd=1",
        ),
        (
            _object(1, segmentation=SQUARE),
            r"41: segmentation must be run lengths .* crowd, got \[\[2, 1",
        ),
        (
            _object(1, segmentation={**MASK, "size": [20, 10]}),
            r"41: segmentation.size must be \[10, 20\]",
        ),
        (
            _object(bbox=[15, 1, 8, 4]),
            r"40: bbox .* inside the image of 20x10 pixels, got \[15, 1, 8, 4\]; 1 of 2 boxes are not",
        ),
        (_object(bbox=[float("nan"), 1, 8, 4]), r"annotation 40: bbox .* got \[nan"),
        (
            _object(bbox=[1, 2]),
            r"40: bbox must be \[x, y, width, height\] in pixels, got \[1, 2\]",
        ),
        (
            _object(segmentation=[[2, 1, 8, 1, float("nan"), 5, 2, 5]]),
            r"40: segmentation must be inside its box \[2, 1, 6, 4\], got .*nan",
        ),
        (
            _object(segmentation=[*SQUARE, [0, 1, 8, 1, 8, 5]]),
            r"40: segmentation must be inside its box .* got \[0, 1, 8",
        ),
        (_object(area=0), r"annotation 40: area must be above 0, got 0"),
        (_object(iscrowd="0"), r"annotation 40: iscrowd must be 0 or 1, got '0'"),
        (
            _object(1, segmentation={**MASK, "counts": [0, 100, 50]}),
            r"41: segmentation.counts must be 200 pixels in all, got 150",
        ),
        (
            {**GOOD, "annotations": [{**GOOD["annotations"][0], **FRACTIONS}]},
            r"boxes must be in pixels, .* got 'from 0 to 1'",
        ),
        (
            _object(1, image_id=8),
            r"annotation 41: image_id must be the id of an image in this file, got 8",
        ),
        (
            _object(1, category_id=2),
            r"annotation 41: category_id must be one of \[1, 3\], got 2",
        ),
        (_object(1, id=40), r"annotation 40: id must be unique, got 40"),
        (
            _changed("categories", 0, name="dog"),
            r"names of the categories of .* must be different names, got \['dog'\]",
        ),
        (
            _changed("categories", 0, id=0),
            r"id of category 'cat' must be a positive integer .* got 0; .* add 1 to each",
        ),
        # A model for the first three of the ids 1 to 5 needs two more classes, not one.
        (
            {**GOOD, "categories": [{"id": k, "name": f"c{k}"} for k in range(1, 6)]},
            "'c4' must be less than num_classes=4, .* got 4; num_classes=6 would do",
        ),
        (
            _changed("images", 0, height=0),
            r"image 7: .*height, width.* must be .* got \(0, 20\)",
        ),
        (
            _changed("images", 0, id="seven"),
            r"image seven: id must be a unique integer, got 'seven'",
        ),
        (
            {**GOOD, "annotations": [{"id": 3}]},
            "got {'id': 3}; missing: area, category_id, image_id,",
        ),
        ({"images": [], "annotations": []}, r"has no list 'categories'"),
    ],
)
def test_check_refuses_errors_in_one_line(content, message, tmp_path):
    path = _write(tmp_path, content)
    with refused(message) as caught:
        annotations.check_annotations(path, num_classes=4)
    assert str(path) in str(caught.value)


def test_check_refuses_files_that_are_not_json(tmp_path):
    path = tmp_path / "none.json"
    message = r"must be the instances file of a COCO data set, got '.*none\.json'; it "
    with refused(f"{message}does not exist"):
        annotations.check_annotations(path)
    path.write_text("{")
    with refused(rf"{message}cannot be read \("):
        annotations.check_annotations(path)


def test_check_program(tmp_path, capsys):
    path = _write(tmp_path, _object(bbox=[15, 1, 5.4, 4]))
    words = [f"--annotations={path}", "--num_classes=4"]
    assert check.command_line.main(check.COMMAND, words) == 0
    shown = capsys.readouterr().out
    assert "1 images, 1 objects and 1 crowds of 2 categories" in shown
    assert "conversion drops them" in shown
    words[1] = f"--images={tmp_path}"
    status = check.command_line.main(check.COMMAND, words)
    assert_refused(status, "image 7: file '.*seven.jpg' does not exist", capsys)
