# SPDX-License-Identifier: Apache-2.0
"""Masks in COCO's formats: of detections, and as polygons that are exact to the pixel."""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_masks

from lambdanet.detection.model_garden import mask_ops


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
        score = float(outputs["detection_scores"][index])
        if score < min_confidence:
            continue
        ymin, xmin, ymax, xmax = map(float, outputs["detection_boxes"][index])
        detection: dict[str, Any] = {
            "category_id": int(outputs["detection_classes"][index]),
            "score": score,
            "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
            "area": (xmax - xmin) * (ymax - ymin),
        }
        if "detection_masks" in outputs:
            mask = np.zeros([height, width])
            if detection["area"] > 0:  # empty boxes are more than OpenCV's warp can do
                cells = outputs["detection_masks"][index : index + 1]
                boxes = np.array([detection["bbox"]])
                (mask,) = mask_ops.paste_instance_masks_v2(cells, boxes, height, width)
            encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
            detection["area"] = float(coco_masks.area(encoded))
            detection["segmentation"] = {
                "size": [height, width],
                "counts": encoded["counts"].decode(),
            }
        found.append(detection)
    return sorted(found, key=lambda detection: -detection["score"])


def decode_mask(segmentation: Mapping[str, Any]) -> np.ndarray:
    """Decodes the mask of a detection.

    Args:
      segmentation: the detection's `segmentation`: {"size": [height, width], "counts": a run-length encoding
        of COCO, as a string}.

    Returns:
      bool [h, w], True on the object.
    """
    return coco_masks.decode(
        {**segmentation, "counts": segmentation["counts"].encode()}
    ).astype(bool)


def mask_to_polygons(mask: np.ndarray) -> list[list[int]]:
    """Returns the outlines of a mask as COCO polygons.

    They follow the edges of pixels, so pycocotools decodes them to the same mask. Each connected component,
    with diagonal neighbors, is one polygon. For a hole, the polygon goes from its first corner to the hole,
    around it and back: an area that a polygon encloses twice is outside.

    Args:
      mask: bool [h, w].

    Returns:
      Per component a flat list x, y, x, y, ... of corners in pixels; an empty list for an empty mask.

    Example:
      >>> mask_to_polygons(np.ones([2, 3], bool))
      [[0, 0, 0, 2, 3, 2, 3, 0]]
    """
    # OpenCV's outlines go through the outermost pixels; with two per side, half of each is the next edge.
    doubled = np.kron(mask, np.ones([2, 2], np.uint8))
    found, parents = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    outlines = [(outline[:, 0] + 1) // 2 for outline in found]
    polygons: dict[int, list[np.ndarray]] = {}
    for number, (*_, parent) in enumerate(parents[0] if outlines else ()):
        outline = outlines[number]
        if parent < 0:
            polygons.setdefault(number, []).insert(0, outline)
        else:
            polygons.setdefault(parent, []).extend(
                [outlines[parent][:1], outline, outline[:1]]
            )
    return [np.concatenate(parts).ravel().tolist() for parts in polygons.values()]
