# SPDX-License-Identifier: Apache-2.0
"""Converts detector outputs to COCO results: masks of the image's size, boxes as x, y, width, height."""

from collections.abc import Mapping
from typing import Any

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
