# SPDX-License-Identifier: Apache-2.0
"""Converts detector outputs to COCO results: masks of the image's size, boxes as x, y, width, height."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pycocotools import mask as coco_masks


def paste_mask(mask: np.ndarray, box: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes the mask of a detection to its box and thresholds it at 0.5.

    Values are interpolated linearly between the centers of cells, with 0 around the mask.

    Args:
      mask: float [m, n], from 0 to 1.
      box: ymin, xmin, ymax, xmax in pixels.
      height: the height of the image in pixels.
      width: the width of the image in pixels.

    Returns:
      bool [height, width].
    """
    rows = _pixel_weights(mask.shape[0], box[0], box[2], height)
    columns = _pixel_weights(mask.shape[1], box[1], box[3], width)
    return rows @ mask @ columns.T > 0.5


def _pixel_weights(cells: int, low: float, high: float, pixels: int) -> np.ndarray:
    """Returns the weight of each cell in each pixel, [pixels, cells]; 0 for pixel centers outside the box."""
    centers = np.arange(pixels) + 0.5
    positions = (centers - low) / max(high - low, 1e-6) * cells - 0.5  # in cells, 0 = center of the first
    weights = np.maximum(1 - np.abs(positions[:, np.newaxis] - np.arange(cells)), 0)
    return weights * ((centers >= low) & (centers <= high))[:, np.newaxis]


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
            mask = paste_mask(outputs["detection_masks"][index], box, height, width)
            encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
            detection["area"] = float(coco_masks.area(encoded))
            detection["segmentation"] = {"size": [height, width], "counts": encoded["counts"].decode()}
        found.append(detection)
    return sorted(found, key=lambda detection: -detection["score"])


def decode_mask(segmentation: Mapping[str, Any]) -> np.ndarray:
    """Decodes the `segmentation` of a detection to bool [h, w]."""
    return coco_masks.decode({**segmentation, "counts": segmentation["counts"].encode()}).astype(bool)
