# SPDX-License-Identifier: Apache-2.0
"""Masks in COCO's formats: of detections, and as polygons and run lengths that are exact to the pixel."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pycocotools import mask as coco_masks
from scipy import ndimage

from lambdanet.detection.model_garden import mask_ops

Point = tuple[int, int]


def to_coco_detections(
    outputs: Mapping[str, np.ndarray], height: int, width: int, min_confidence: float
) -> list[dict[str, Any]]:
    """Returns the detections in one image in COCO's results format, without the id of the image.

    Args:
      outputs: the outputs of `DetectorModule` for one image: `detection_boxes` [n, 4] and so on.
      height: the height of the image in pixels.
      width: the width of the image in pixels.
      min_confidence: the lowest score of a detection that is returned.

    Returns:
      Per detection, by descending score: `category_id`, `score`, `bbox` (x, y, width, height in pixels),
      `area`, and, if the detector has masks, `segmentation` (compressed run lengths).
    """
    found = []
    for index in range(int(outputs["num_detections"])):
        score, box = float(outputs["detection_scores"][index]), outputs["detection_boxes"][index]
        if score < min_confidence:
            continue
        ymin, xmin, ymax, xmax = (float(side) for side in box)
        detection: dict[str, Any] = {
            "category_id": int(outputs["detection_classes"][index]),
            "score": score,
            "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
            "area": (xmax - xmin) * (ymax - ymin),
        }
        if "detection_masks" in outputs:
            mask = np.zeros([height, width])
            if detection["area"] > 0:  # empty boxes are more than OpenCV's warp can do
                cells, boxes = outputs["detection_masks"][index : index + 1], np.array([detection["bbox"]])
                (mask,) = mask_ops.paste_instance_masks_v2(cells, boxes, height, width)
            encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
            detection["area"] = float(coco_masks.area(encoded))
            detection["segmentation"] = {"size": [height, width], "counts": encoded["counts"].decode()}
        found.append(detection)
    return sorted(found, key=lambda detection: -detection["score"])


def decode_mask(segmentation: Mapping[str, Any]) -> np.ndarray:
    """Decodes the `segmentation` of a detection to bool [h, w]."""
    return coco_masks.decode({**segmentation, "counts": segmentation["counts"].encode()}).astype(bool)


def mask_to_polygons(mask: np.ndarray) -> list[list[int]]:
    """Returns the outlines of a mask as COCO polygons.

    They follow the edges of pixels, so pycocotools decodes them to the same mask. Each connected component is
    one polygon. For a hole, the polygon goes from its first corner to the hole, around it and back: an area
    that a polygon encloses twice is outside.

    Args:
      mask: bool [h, w].

    Returns:
      Per component a flat list x, y, x, y, ... of corners in pixels; an empty list for an empty mask.

    Example:
      >>> mask_to_polygons(np.ones([2, 3], bool))
      [[0, 0, 3, 0, 3, 2, 0, 2]]
    """
    labels, count = ndimage.label(mask)
    return [_polygon(labels == label) for label in range(1, count + 1)]


def _polygon(part: np.ndarray) -> list[int]:
    outer, *holes = sorted(_trace_outlines(part), key=_extent, reverse=True)
    corners = list(outer)
    for hole in holes:
        corners += [outer[0], *hole, hole[0]]
    return [int(number) for corner in corners for number in corner]


def _trace_outlines(mask: np.ndarray) -> list[list[Point]]:
    """Returns the closed outlines of a mask as lists of corners, without points on straight lines."""
    following = _edges(mask)
    loops = []
    while following:
        start = point = next(iter(following))
        loop = []
        while True:
            loop.append(point)
            ends = following[point]
            reached = ends.pop()
            if not ends:
                del following[point]
            point = reached
            if point == start:
                break
        loops.append([p for i, p in enumerate(loop) if _turns(loop[i - 1], p, loop[(i + 1) % len(loop)])])
    return loops


def _edges(mask: np.ndarray) -> dict[Point, list[Point]]:
    """Returns the pixel edges between inside and outside: start -> ends, with the inside on the right."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    following: dict[Point, list[Point]] = {}
    for neighbor, start, end in (
        (padded[:-2, 1:-1], (0, 0), (1, 0)),  # the pixel above is outside: an edge from left to right
        (padded[1:-1, 2:], (1, 0), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (0, 1)),
        (padded[1:-1, :-2], (0, 1), (0, 0)),
    ):
        for y, x in np.argwhere(inside & ~neighbor):
            following.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    return following


def _turns(before: Point, point: Point, after: Point) -> bool:
    return not (before[0] == point[0] == after[0] or before[1] == point[1] == after[1])


def _extent(loop: list[Point]) -> int:
    return max(x for x, _ in loop) - min(x for x, _ in loop)


def mask_to_run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Returns a mask as uncompressed run lengths, COCO's format for crowds.

    Args:
      mask: bool [h, w].

    Returns:
      `size`, and `counts`: the numbers of pixels outside, inside, outside, ... in column order.

    Example:
      >>> mask_to_run_lengths(np.array([[False, True], [False, True]]))
      {'size': [2, 2], 'counts': [2, 2]}
    """
    pixels = mask.T.ravel()
    changes = np.flatnonzero(np.diff(pixels, prepend=False)).tolist()
    counts = np.diff([0, *changes, pixels.size]).tolist()
    return {"size": list(mask.shape), "counts": counts}
