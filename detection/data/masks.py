# SPDX-License-Identifier: Apache-2.0
"""From what a detector gives to what COCO asks for: masks on the picture, boxes as x, y, width, height."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pycocotools import mask as coco_masks


def paste(mask: np.ndarray, box: np.ndarray, height: int, width: int) -> np.ndarray:
    """Stretches the mask of a detection over its box, and tells the pixels inside from those outside.

    It is interpolated linearly between the centres of its cells, and taken as 0 around it.

    Args:
      mask: float [m, n], from 0 to 1.
      box: ymin, xmin, ymax, xmax in pixels.
      height: of the picture, in pixels.
      width: likewise.

    Returns:
      bool [height, width].
    """
    rows = _weights(mask.shape[0], box[0], box[2], height)
    columns = _weights(mask.shape[1], box[1], box[3], width)
    return rows @ mask @ columns.T > 0.5


def _weights(cells: int, low: float, high: float, pixels: int) -> np.ndarray:
    """How much each cell counts in each pixel [pixels, cells]; nothing where its centre is outside."""
    centers = np.arange(pixels) + 0.5
    places = (centers - low) / max(high - low, 1e-6) * cells - 0.5  # in cells, from the centre of the first
    weights = np.maximum(1 - np.abs(places[:, np.newaxis] - np.arange(cells)), 0)
    return weights * ((centers >= low) & (centers <= high))[:, np.newaxis]


def detections_of(
    outputs: Mapping[str, np.ndarray], height: int, width: int, min_score: float
) -> list[dict[str, Any]]:
    """Returns the detections in one picture as COCO writes results, without the id of the image.

    Args:
      outputs: of a signature of `ServedDetector`, for one picture: `detection_boxes` [n, 4] and so on.
      height: of the picture, in pixels.
      width: likewise.
      min_score: those below are left out.

    Returns:
      For each, the surest first, `category_id`, `score`, `bbox` (x, y, width, height in pixels), and where
      the detector gives masks `segmentation` (run lengths, compressed) and `area` of the mask.
    """
    found = []
    for index in range(int(outputs["num_detections"])):
        score, box = float(outputs["detection_scores"][index]), outputs["detection_boxes"][index]
        if score < min_score:
            continue
        ymin, xmin, ymax, xmax = (float(side) for side in box)
        detection: dict[str, Any] = {
            "category_id": int(outputs["detection_classes"][index]),
            "score": score,
            "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
            "area": (xmax - xmin) * (ymax - ymin),
        }
        if "detection_masks" in outputs:
            mask = paste(outputs["detection_masks"][index], box, height, width)
            encoded = coco_masks.encode(np.asfortranarray(mask, np.uint8))
            detection["area"] = float(coco_masks.area(encoded))
            detection["segmentation"] = {"size": [height, width], "counts": encoded["counts"].decode()}
        found.append(detection)
    return sorted(found, key=lambda detection: -detection["score"])


def decode(segmentation: Mapping[str, Any]) -> np.ndarray:
    """Returns the mask of a detection as bool [h, w]."""
    return coco_masks.decode({**segmentation, "counts": segmentation["counts"].encode()}).astype(bool)
