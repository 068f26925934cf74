# SPDX-License-Identifier: Apache-2.0
"""Detections as masks, drawings and COCO tables: against geometry and known tables."""

import numpy as np
import pytest
from pycocotools import mask as coco_masks

from lambdanet.detection.data.masks import decode_mask, to_coco_detections
from lambdanet.detection.serving import prediction
from lambdanet.detection.serving.coco_table import (
    COLUMNS,
    average_precision,
)

NAMES = ["background", "cat", "dog"]


def _outputs(boxes, scores, classes, masks=None):
    outputs = {
        "detection_boxes": np.array(boxes, np.float32),
        "detection_scores": np.array(scores, np.float32),
        "detection_classes": np.array(classes, np.int32),
        "num_detections": np.int32(len(boxes)),
    }
    return (
        outputs
        if masks is None
        else {**outputs, "detection_masks": np.array(masks, np.float32)}
    )


@pytest.mark.parametrize(
    ("box", "shape"),
    [
        ((2, 3, 7, 9), (5, 6)),
        ((-4, 8, 4, 20), (4, 4)),  # in part outside of the image of 10 x 12 pixels
        ((2, 3, 2, 9), (0, 0)),  # empty
    ],
)
def test_mask_fills_the_pixels_of_its_box(box, shape):
    outputs = _outputs([box], [0.9], [1], np.ones([1, 28, 28]))
    (found,) = to_coco_detections(outputs, 10, 12, min_confidence=0.5)
    expected = np.zeros([10, 12], bool)
    top, left = max(box[0], 0), max(box[1], 0)
    expected[top : top + shape[0], left : left + shape[1]] = True
    assert np.array_equal(decode_mask(found["segmentation"]), expected)


def test_mask_is_interpolated_between_centers_of_cells():
    """Of a plane, which is interpolated without an error, but next to the border of the box."""
    cells, pixels = ((np.arange(size) + 0.5) / size * 2 - 1 for size in (28, 40))
    mask, expected = (
        0.5 + 0.3 * place[:, np.newaxis] - 0.2 * place for place in (cells, pixels)
    )
    (found,) = to_coco_detections(
        _outputs([(3, 5, 43, 45)], [0.9], [1], [mask]), 50, 50, min_confidence=0.5
    )
    differences = decode_mask(found["segmentation"])[3:43, 5:45] != (expected > 0.5)
    assert differences[1:-1, 1:-1].mean() < 0.005


def test_to_coco_detections_with_masks():
    masks = [np.ones([28, 28]), np.zeros([28, 28])]
    outputs = _outputs([[2, 3, 7, 9], [0, 0, 5, 5]], [0.6, 0.9], [2, 1], masks)
    # In descending order of scores.
    empty, filled = to_coco_detections(outputs, 10, 12, min_confidence=0.5)
    assert (empty["score"], filled["score"]) == pytest.approx((0.9, 0.6))
    assert (empty["category_id"], empty["bbox"], empty["area"]) == (1, [0, 0, 5, 5], 0)
    assert (filled["category_id"], filled["bbox"], filled["area"]) == (
        2,
        [3, 2, 6, 5],
        30,
    )
    assert coco_masks.toBbox(filled["segmentation"]).tolist() == [3, 2, 6, 5]


def test_to_coco_detections_omits_padding_and_low_scores():
    outputs = {
        **_outputs([[0, 0, 1, 1]] * 3, [0.9, 0.4, 0.3], [1, 1, 1]),
        "num_detections": np.int32(2),
    }
    assert len(to_coco_detections(outputs, 5, 5, min_confidence=0.0)) == 2
    (only,) = to_coco_detections(outputs, 5, 5, min_confidence=0.5)
    assert "segmentation" not in only and only["area"] == 1


def _detection(bbox, mask):
    encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
    counts = encoded["counts"].decode()
    segmentation = {"size": list(mask.shape), "counts": counts}
    return {
        "image_id": 1,
        "bbox": bbox,
        "category_id": 1,
        "score": 0.99,
        "segmentation": segmentation,
    }


def test_drawing_has_box_mask_and_label():
    image = np.full([200, 300, 3], 128, np.uint8)
    mask = np.zeros([200, 300], bool)
    mask[110:140, 60:90] = True
    drawn = np.asarray(
        prediction.draw_detections(image, [_detection([50, 100, 60, 50], mask)], NAMES)
    )
    factor = 4  # 200 pixels become at least 640
    assert drawn.shape == (200 * factor, 300 * factor, 3)
    changed = (drawn != 128).any(axis=-1)
    color = np.array([0xE6, 0x19, 0x4B])
    # The left side of the box.
    assert np.array_equal(drawn[120 * factor, 50 * factor], color)
    blended = np.round(128 + prediction.MASK_OPACITY * (color - 128))
    assert np.abs(drawn[125 * factor, 75 * factor] - blended).max() <= 2
    assert not changed[145 * factor, 100 * factor]  # in the box, not in the mask
    assert changed[100 * factor - 8, 50 * factor + 5]  # the label, above the box
    assert not changed[: 80 * factor].any() and not changed[:, 200 * factor :].any()


def _truth(*boxes):
    annotations = [
        {
            "id": number,
            "image_id": 1,
            "category_id": 1,
            "iscrowd": 0,
            "area": w * h,
            "bbox": [x, y, w, h],
            "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
        }
        for number, (x, y, w, h) in enumerate(boxes, 1)
    ]
    images = [{"id": number, "height": 200, "width": 200} for number in (1, 2)]
    return {
        "images": images,
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": annotations,
    }


def _found(bbox):
    x, y, width, height = bbox
    mask = np.zeros([200, 200], bool)
    mask[y : y + height, x : x + width] = True
    return _detection(bbox, mask)


def test_table_counts_by_size_and_by_overlap():
    """One of two objects is found with an overlap of 0.8: correct at 7 of 10 thresholds, 0.50 to 0.80."""
    truth = _truth([0, 0, 100, 100], [150, 150, 10, 10])
    table = average_precision(truth, [_found([0, 0, 100, 80])])
    half = 51 / 101  # precision 1 at the recalls 0, 0.01, ..., 0.50
    assert table["box"]["AP50"] == pytest.approx(half, abs=1e-5)
    assert table["box"]["AP"] == pytest.approx(0.7 * half, abs=1e-5)
    assert set(table) == {"box", "mask"} and tuple(table["box"]) == COLUMNS
    assert table["mask"]["AP large"] == pytest.approx(0.7, abs=1e-5)
    assert (table["box"]["AP small"], table["box"]["AP medium"]) == (0, -1)


def test_table_without_detections_has_boxes_alone():
    table = average_precision(_truth([0, 0, 50, 50]), [])
    assert set(table) == {"box"} and table["box"]["AP"] == 0


@pytest.mark.parametrize("first", [0, 1, "a"])
def test_ids_of_annotations_change_no_precision(first):
    """pycocotools takes 0 for no match, and no texts: a perfect detector has 100 with any ids."""
    ids = [first, 5, 9]
    boxes = [[10 * k, 10 * k, 8 + k, 8] for k in range(3)]
    truth = _truth(*boxes)
    for number, item in zip(ids, truth["annotations"], strict=True):
        item["id"] = number
    table = average_precision(truth, [_found(box) for box in boxes])
    assert table["box"]["AP"] == pytest.approx(1)
    assert [item["id"] for item in truth["annotations"]] == ids
