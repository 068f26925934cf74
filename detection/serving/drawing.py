# SPDX-License-Identifier: Apache-2.0
"""Draws detections on an image: masks, boxes, class names and scores."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lambdanet.detection.data.masks import decode_mask

MIN_SIDE, MAX_SIDE = 640, 2000  # of the drawing, in pixels; small images are enlarged to fit the names
MASK_OPACITY = 0.45
PADDING = 3  # of a label, in pixels

# Visible on most images and distinguishable by most people; assigned to classes in turn.
COLORS = (
    *("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#f032e6", "#9a6324"),
    *("#ffe119", "#42d4f4", "#bfef45", "#fabed4", "#800000", "#808000", "#000075", "#469990"),
)

Rectangle = tuple[float, float, float, float]


def draw_detections(
    image: np.ndarray, detections: Sequence[Mapping[str, Any]], class_names: Sequence[str]
) -> Image.Image:
    """Draws detections on an image.

    Labels are inside the image, and overlap only if there is no free place.

    Args:
      image: uint8 RGB [h, w, 3].
      detections: the result of `lambdanet.detection.data.masks.to_coco_detections`.
      class_names: the name of each class number.

    Returns:
      An RGB image, enlarged if the input is small.
    """
    factor = scale_factor(*image.shape[:2])
    size = (round(image.shape[1] * factor), round(image.shape[0] * factor))
    canvas = Image.fromarray(image).resize(size, Image.Resampling.LANCZOS)
    for detection in reversed(detections):
        if "segmentation" in detection:
            mask = Image.fromarray(decode_mask(detection["segmentation"])).convert("L").resize(size)
            canvas.paste(_color(detection), mask=mask.point(lambda value: int(MASK_OPACITY * value)))
    draw = ImageDraw.Draw(canvas)
    thickness = max(2, round(min(size) / 300))
    for detection in reversed(detections):
        draw.rectangle(_corners(detection["bbox"], factor), outline=_color(detection), width=thickness)
    font = ImageFont.load_default(max(13, round(min(size) / 45)))
    taken: list[Rectangle] = []
    for detection in detections:
        text = f"{class_names[detection['category_id']]} {100 * detection['score']:.0f} %"
        taken.append(_draw_label(draw, font, text, detection, factor, taken, size))
    return canvas


def scale_factor(height: int, width: int) -> float:
    """Returns the factor by which an image is enlarged for drawing."""
    enlarged = max(1, math.ceil(MIN_SIDE / min(height, width)))
    return min(enlarged, max(1.0, MAX_SIDE / max(height, width)))


def _color(detection: Mapping[str, Any]) -> str:
    return COLORS[(detection["category_id"] - 1) % len(COLORS)]


def _corners(bbox: Sequence[float], factor: float) -> Rectangle:
    x, y, width, height = (factor * number for number in bbox)
    return x, y, x + max(width, 1), y + max(height, 1)


def _draw_label(
    draw: ImageDraw.ImageDraw,
    font: Any,
    text: str,
    detection: Mapping[str, Any],
    factor: float,
    taken: Sequence[Rectangle],
    size: tuple[int, int],
) -> Rectangle:
    """Draws a label near its box; returns its rectangle."""
    left, top, right, bottom = draw.textbbox((0, 0), text, font)
    width, height = right - left + 2 * PADDING, bottom - top + 2 * PADDING
    place = free_label_place(_corners(detection["bbox"], factor), width, height, taken, size)
    color = _color(detection)
    draw.rectangle(place, fill=color)
    ink = "black" if _luminance(color) > 140 else "white"
    draw.text((place[0] + PADDING - left, place[1] + PADDING - top), text, ink, font)
    return place


def free_label_place(
    box: Rectangle, width: float, height: float, taken: Sequence[Rectangle], size: tuple[int, int]
) -> Rectangle:
    """Returns the first rectangle above, in or below a box with the least overlap, moved into the image.

    Args:
      box: the box x0, y0, x1, y1 in pixels.
      width: the width of the rectangle.
      height: the height of the rectangle.
      taken: the rectangles of other labels.
      size: the width and height of the image.
    """
    x0, y0, x1, y1 = box
    corners = [(x, y) for y in (y0 - height, y0, y1, y1 - height) for x in (x0, x1 - width)]
    corners += [(x0, y0 + shift * height) for shift in range(1, 5)]
    places = []
    for x, y in corners:
        x, y = (
            max(0.0, min(at, side - 1 - extent))
            for at, side, extent in ((x, size[0], width), (y, size[1], height))
        )
        places.append((x, y, x + width, y + height))
    return min(places, key=lambda place: sum(overlap_area(place, other) for other in taken))


def overlap_area(one: Rectangle, other: Rectangle) -> float:
    """Returns the area of the intersection of two rectangles."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0) * max(height, 0)


def _luminance(color: str) -> float:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue
