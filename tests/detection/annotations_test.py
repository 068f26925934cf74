# SPDX-License-Identifier: Apache-2.0
"""What is wrong in an annotation file is told in one line, with the file and the annotation."""

import copy
import json

import pytest
from PIL import Image

from lambdanet.detection import check
from lambdanet.detection.data import annotations
from lambdanet.errors import InputError

SQUARE = [[2, 1, 8, 1, 8, 5, 2, 5]]
GOOD = {
    "images": [{"id": 7, "file_name": "seven.jpg", "height": 10, "width": 20}],
    "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
    "annotations": [
        {
            **{"id": 40, "image_id": 7, "category_id": 3, "iscrowd": 0, "area": 24},
            **{"bbox": [2, 1, 6, 4], "segmentation": SQUARE},
        },
        {
            **{"id": 41, "image_id": 7, "category_id": 1, "iscrowd": 1, "area": 200},
            **{"bbox": [0, 0, 20, 10], "segmentation": {"size": [10, 20], "counts": [0, 200]}},
        },
    ],
}


def _write(tmp_path, content, text=None):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content) if text is None else text)
    return path


def _changed(key, index, **changes):
    content = copy.deepcopy(GOOD)
    content[key][index].update(changes)
    return content


def test_what_is_right_is_counted(tmp_path):
    Image.new("RGB", (20, 10)).save(tmp_path / "seven.jpg")
    found = annotations.check(_write(tmp_path, GOOD), tmp_path, num_classes=4)
    assert found == {"images": 1, "objects": 1, "crowds": 1, "categories": 2, "left_out": 0}


@pytest.mark.parametrize("box", [[2, 1, 0, 4], [15, 1, 5.4, 4]])
def test_boxes_that_the_converter_leaves_out_are_counted(box, tmp_path):
    """As COCO's own annotations have some: empty, or over the edge by less than a pixel."""
    assert annotations.check(_write(tmp_path, _changed("annotations", 0, bbox=box)))["left_out"] == 1


@pytest.mark.parametrize(
    "content, message",
    [
        (_changed("annotations", 0, segmentation=[]), r"annotation 40 has no mask \(segmentation=\[\]\)"),
        (_changed("annotations", 0, segmentation=None), r"annotation 40 has no mask \(segmentation=None\)"),
        (_changed("annotations", 0, segmentation=[[1, 2, 3, 4]]), r"annotation 40 .* no list of polygons"),
        (
            _changed("annotations", 0, segmentation={"size": [10, 20], "counts": [0, 200]}),
            r"annotation 40 is no crowd, and its segmentation is no list of polygons",
        ),
        (_changed("annotations", 1, segmentation=SQUARE), r"annotation 41 is a crowd without run lengths"),
        (
            _changed("annotations", 1, segmentation={"size": [20, 10], "counts": [0, 200]}),
            r"annotation 41 has a mask of \[20, 10\] pixels in an image of \[10, 20\]",
        ),
        (
            _changed("annotations", 0, bbox=[15, 1, 8, 4]),
            r"annotation 40 has the bbox \[15, 1, 8, 4\] .* in an image of 20x10 pixels; expected a box",
        ),
        (_changed("annotations", 0, bbox=[-3, 1, 8, 4]), r"annotation 40 has the bbox \[-3, 1, 8, 4\]"),
        (_changed("annotations", 0, bbox=[float("nan"), 1, 8, 4]), r"annotation 40 has the bbox \[nan"),
        (_changed("annotations", 0, bbox=[1, 2]), r"annotation 40 has the bbox \[1, 2\]; expected \[x, y,"),
        (_changed("annotations", 1, image_id=8), r"annotation 41 is of the image 8, which .* does not list"),
        (
            _changed("annotations", 1, category_id=2),
            r"annotation 41 is of the category 2; accepted: \[1, 3\]",
        ),
        (_changed("annotations", 1, id=40), r"annotation 40 is there twice"),
        (_changed("categories", 0, id=0), r"category 'cat' has the id 0; expected a whole number from 1"),
        (_changed("categories", 1, name="dog\nhouse"), r"class 1 of the categories of .* got 'dog\\nhouse'"),
        (_changed("categories", 0, name=3), r"class 0 of the categories of .* must be a name of one line"),
        (_changed("images", 0, height=0), r"image 7 has height=0, width=20"),
        (_changed("images", 0, id="seven"), r"image seven cannot be told apart; expected whole numbers"),
        (
            {**GOOD, "annotations": [{"id": 3, "caption": "a cat"}]},
            r"lacks area, category_id, image_id, iscrowd",
        ),
        ({**GOOD, "images": [{"id": 3}]}, r"lacks id, file_name, height or width"),
        ({"images": [], "annotations": []}, r"has no list 'categories'"),
        ([], r"has no list 'images'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(content, message, tmp_path):
    path = _write(tmp_path, content)
    with pytest.raises(InputError, match=message) as told:
        annotations.check(path)
    assert str(path) in str(told.value) and "\n" not in str(told.value)


def test_ids_of_classes_beyond_those_of_the_model(tmp_path):
    path = _write(tmp_path, GOOD)
    with pytest.raises(
        InputError, match=r"'dog' has the id 3, but num_classes=3, .* or num_classes=4 or more"
    ):
        annotations.check(path, num_classes=3)
    annotations.check(path, num_classes=4)


def test_a_missing_picture(tmp_path):
    message = r"image 7 is the file '.*seven\.jpg', which does not exist"
    with pytest.raises(InputError, match=message):
        annotations.check(_write(tmp_path, GOOD), tmp_path)
    with pytest.raises(InputError, match=message):
        annotations.check(_write(tmp_path, GOOD), tmp_path / "nowhere")


def test_masks_are_not_asked_for_where_boxes_are_enough(tmp_path):
    annotations.check(_write(tmp_path, _changed("annotations", 0, segmentation=None)), masks=False)


@pytest.mark.parametrize("text", ["", "{", "not json"])
def test_a_file_that_is_no_json(text, tmp_path):
    with pytest.raises(
        InputError, match=r"instances\.json' cannot be read \(.*; expected the instances file"
    ):
        annotations.check(_write(tmp_path, None, text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json' does not exist; expected the instances file"):
        annotations.check(tmp_path / "nothing.json")


def test_the_names_of_classes_by_their_number(tmp_path):
    path = _write(tmp_path, GOOD)
    assert annotations.class_names(path, 5) == ["background", "cat", "2", "dog", "4"]
    with pytest.raises(InputError, match="num_classes=3"):
        annotations.class_names(path, 3)


def test_the_program(tmp_path, capsys):
    path = _write(tmp_path, _changed("annotations", 0, bbox=[15, 1, 5.4, 4]))
    assert check.command.main(check.COMMAND, [f"--annotations={path}", "--num_classes=4"]) == 0
    shown = capsys.readouterr().out
    assert "1 images, 1 objects and 1 crowds of 2 categories" in shown and "conversion drops them" in shown
    assert check.command.main(check.COMMAND, [f"--annotations={path}", f"--images={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("lambdanet.detection.check: error: ")
