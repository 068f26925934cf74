# SPDX-License-Identifier: Apache-2.0
"""Finds objects in image files with an exported detector, without Keras."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.detection.data.masks import to_coco_detections
from lambdanet.detection.serving.drawing import draw_detections
from lambdanet.errors import InputError, invalid
from lambdanet.files import check_replaceable, write_output
from lambdanet.training.data.image_files import (
    expand_folders,
    percent,
    picture_paths,
    printable,
    read_images,
    save_picture,
)
from lambdanet.training.serving.exported_model import load_exported_model

PREDICTIONS = "predictions.json"

Detector = Callable[[np.ndarray], dict[str, np.ndarray]]


def predict(
    saved_model: str | Path,
    images: Sequence[str | Path] | str | Path,
    out: str | Path,
    min_confidence: float = 0.5,
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

    Returns:
      The content of `predictions.json`.

    Raises:
      InputError: no image can be read, `saved_model` is not an exported detector, `min_confidence` is out of
        range, or `out` cannot be written.
    """
    paths = expand_folders(images)
    if not 0 <= min_confidence <= 1:
        raise invalid("min_confidence", "a number from 0 to 1", min_confidence)
    detector, names = load_detector(saved_model)
    pictures = picture_paths(paths, out)
    check_replaceable(Path(out).expanduser() / PREDICTIONS, rb'\{"info": \{"description": "lambdanet')
    listed: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    unreadable: list[str] = []
    for (path, image), picture in zip(read_images(paths), pictures, strict=True):
        if isinstance(image, InputError):
            unreadable.append(path)
            continue
        number, (height, width) = len(listed) + 1, image.shape[:2]
        detections = to_coco_detections(detector(image), height, width, min_confidence)
        save_picture(draw_detections(image, detections, names), picture)
        _print_detections(path, detections, names, picture)
        listed.append({"id": number, "file_name": path, "height": height, "width": width})
        for detection in detections:
            found.append({"id": len(found) + 1, "image_id": number, "iscrowd": 0, **detection})
    categories = [{"id": number, "name": name} for number, name in enumerate(names) if number]
    results = {"info": {"description": "lambdanet.detection.predict"}, "images": listed, "annotations": found}
    results |= {"categories": categories, "unreadable": unreadable}
    write_output(Path(out).expanduser() / PREDICTIONS, json.dumps(results))
    return results


def load_detector(saved_model: str | Path) -> tuple[Detector, list[str]]:
    """Loads an exported detector.

    Returns:
      A function from one image (uint8 RGB [h, w, 3]) to the outputs of `DetectorModule` for it, such as
      `detection_boxes` [n, 4]; and the class names by number.

    Raises:
      InputError: there is no SavedModel, it is damaged, or it is not an exported detector.
    """
    exported = load_exported_model(saved_model, "detection_boxes", "`python -m lambdanet.detection.export`")
    signature = exported.signatures["serving_default"]

    def detect(image: np.ndarray) -> dict[str, np.ndarray]:
        outputs = signature(images=tf.constant(image[np.newaxis]))
        return {name: output[0].numpy() for name, output in outputs.items()}

    return detect, exported.class_names


def _print_detections(
    path: str, detections: Sequence[dict[str, Any]], names: Sequence[str], picture: str
) -> None:
    print(printable(path))
    width = max((len(names[detection["category_id"]]) for detection in detections), default=0)
    for detection in detections:
        x, y, box_width, box_height = (round(number) for number in detection["bbox"])
        name = names[detection["category_id"]]
        print(f"  {name:<{width}}  {percent(detection['score']):>7}  {box_width}x{box_height} px at {x}, {y}")
    count = f"{len(detections)} object{'' if len(detections) == 1 else 's'}"
    print(f"  {count}, drawn in {printable(picture)}")
