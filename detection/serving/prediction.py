# SPDX-License-Identifier: Apache-2.0
"""Finds and draws objects in image files with an exported detector, without Keras."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from lambdanet.core.errors import InputError, escape_unprintable, invalid
from lambdanet.core.files import (
    check_new,
    local_path,
    writable_dir,
    write_output,
)
from lambdanet.detection.data.masks import decode_mask, to_coco_detections
from lambdanet.training.data.image_files import expand_folders, read_images
from lambdanet.training.serving.drawing import (
    percent,
    picture_paths,
    save_picture,
)
from lambdanet.training.serving.exported_model import load_exported_model

PREDICTIONS = "predictions.json"

# The drawing, in pixels; small images are enlarged to fit the names.
MIN_SIDE = 640
MAX_SIDE = 2000
MASK_OPACITY = 0.45
PADDING = 3  # of a label, in pixels

# Visible on most images and distinguishable by most people; assigned to classes in turn.
COLORS = (
    "#e6194b",
    "#3cb44b",
    "#4363d8",
    "#f58231",
    "#911eb4",
    "#008080",
    "#f032e6",
    "#9a6324",
    "#ffe119",
    "#42d4f4",
    "#bfef45",
    "#fabed4",
    "#800000",
    "#808000",
    "#000075",
    "#469990",
)

Detector = Callable[[np.ndarray], dict[str, np.ndarray]]
Rectangle = tuple[float, float, float, float]


def predict(
    saved_model: str | Path,
    images: Sequence[str | Path] | str | Path,
    out: str | Path,
    min_confidence: float = 0.5,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Finds objects in images, draws them, and writes them in COCO's format.

    An image that cannot be read is reported and skipped.

    Args:
      saved_model: a folder written by `lambdanet.detection.export`.
      images: image files in any format that Pillow reads, and folders of them.
      out: the folder for `NAME_prediction.png` of each image, and for `predictions.json`: a data set in
        COCO's format, whose annotations have a score, and run lengths as masks. `unreadable` lists the
        skipped files.
      min_confidence: the lowest score of a reported detection, from 0 to 1.
      overwrite: whether files that exist in `out` are replaced.

    Returns:
      The content of `predictions.json`.

    Raises:
      InputError: no image can be read, `saved_model` is not an exported detector, `min_confidence` is out of
        range, or a file in `out` exists or cannot be written.
    """
    paths = expand_folders(images, out)
    if not 0 <= min_confidence <= 1:
        raise invalid("min_confidence", "a number from 0 to 1", min_confidence)
    folder = local_path(out, "out")
    file = folder / PREDICTIONS
    check_new(file, overwrite)
    pictures = picture_paths(paths, out, overwrite)
    detector, names = load_detector(saved_model)
    writable_dir(folder)
    listed: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    unreadable: list[str] = []
    for (path, image), picture in zip(read_images(paths), pictures, strict=True):
        if isinstance(image, InputError):
            unreadable.append(path)
            continue
        number = len(listed) + 1
        height, width = image.shape[:2]
        detections = to_coco_detections(detector(image), height, width, min_confidence)
        save_picture(draw_detections(image, detections, names), picture)
        _print_detections(path, detections, names, picture)
        listed.append(
            {"id": number, "file_name": path, "height": height, "width": width}
        )
        for detection in detections:
            found.append(
                {"id": len(found) + 1, "image_id": number, "iscrowd": 0, **detection}
            )
    categories = [
        {"id": number, "name": name} for number, name in enumerate(names) if number
    ]
    results = {
        "info": {"description": "lambdanet.detection.predict"},
        "images": listed,
        "annotations": found,
        "categories": categories,
        "unreadable": unreadable,
    }
    write_output(file, json.dumps(results))
    return results


def load_detector(saved_model: str | Path) -> tuple[Detector, list[str]]:
    """Loads an exported detector.

    Args:
      saved_model: the folder that `python -m lambdanet.detection.export` wrote.

    Returns:
      A function from one image (uint8 RGB [h, w, 3]) to the outputs of `DetectorModule` for it, such as
      `detection_boxes` [n, 4]; and the class names by number.

    Raises:
      InputError: there is no SavedModel, it is damaged, or it is not an exported detector.
    """
    exported = load_exported_model(
        saved_model, "detection_boxes", "`python -m lambdanet.detection.export`"
    )
    signature = exported.signatures["serving_default"]

    def detect(image: np.ndarray) -> dict[str, np.ndarray]:
        outputs = signature(images=tf.constant(image[np.newaxis]))
        return {name: output[0].numpy() for name, output in outputs.items()}

    return detect, exported.class_names


def _print_detections(
    path: str, detections: Sequence[dict[str, Any]], names: Sequence[str], picture: str
) -> None:
    print(escape_unprintable(path))
    width = max(
        (len(names[detection["category_id"]]) for detection in detections), default=0
    )
    for detection in detections:
        x, y, box_width, box_height = (round(number) for number in detection["bbox"])
        name = names[detection["category_id"]]
        print(
            f"  {name:<{width}}  {percent(detection['score']):>7}  {box_width}x{box_height} px at {x}, {y}"
        )
    count = f"{len(detections)} object{'' if len(detections) == 1 else 's'}"
    print(f"  {count}, drawn in {escape_unprintable(picture)}")


def draw_detections(
    image: np.ndarray,
    detections: Sequence[Mapping[str, Any]],
    class_names: Sequence[str],
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
            mask = (
                Image.fromarray(decode_mask(detection["segmentation"]))
                .convert("L")
                .resize(size)
            )
            canvas.paste(
                _color(detection),
                mask=mask.point(lambda value: int(MASK_OPACITY * value)),
            )
    draw = ImageDraw.Draw(canvas)
    thickness = max(2, round(min(size) / 300))
    for detection in reversed(detections):
        draw.rectangle(
            _corners(detection["bbox"], factor),
            outline=_color(detection),
            width=thickness,
        )
    font = ImageFont.load_default(max(13, round(min(size) / 45)))
    taken: list[Rectangle] = []
    for detection in detections:
        text = (
            f"{class_names[detection['category_id']]} {100 * detection['score']:.0f} %"
        )
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
    width = right - left + 2 * PADDING
    height = bottom - top + 2 * PADDING
    place = free_label_place(
        _corners(detection["bbox"], factor), width, height, taken, size
    )
    color = _color(detection)
    draw.rectangle(place, fill=color)
    ink = "black" if Image.new("L", (1, 1), color).tobytes()[0] > 140 else "white"
    draw.text((place[0] + PADDING - left, place[1] + PADDING - top), text, ink, font)
    return place


def free_label_place(
    box: Rectangle,
    width: float,
    height: float,
    taken: Sequence[Rectangle],
    size: tuple[int, int],
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
    corners = [
        (x, y) for y in (y0 - height, y0, y1, y1 - height) for x in (x0, x1 - width)
    ]
    corners += [(x0, y0 + shift * height) for shift in range(1, 5)]
    places = []
    for x, y in corners:
        left = max(0.0, min(x, size[0] - 1 - width))
        top = max(0.0, min(y, size[1] - 1 - height))
        places.append((left, top, left + width, top + height))
    return min(
        places, key=lambda place: sum(overlap_area(place, other) for other in taken)
    )


def overlap_area(one: Rectangle, other: Rectangle) -> float:
    """Returns the area of the intersection of two rectangles."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0) * max(height, 0)
