# SPDX-License-Identifier: Apache-2.0
"""Evaluates an exported detector on annotated images: the COCO table, computed by pycocotools."""

import contextlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tqdm import tqdm

from lambdanet.core import text_table
from lambdanet.core.errors import check_known
from lambdanet.core.files import check_new, local_path, write_output
from lambdanet.detection.data import annotations
from lambdanet.detection.data.masks import to_coco_detections
from lambdanet.detection.serving.prediction import load_detector
from lambdanet.training.data.image_files import read_image

# In the order of COCOeval.stats.
COLUMNS = (
    *("AP", "AP50", "AP75", "AP small", "AP medium", "AP large"),
    *("AR1", "AR10", "AR100", "AR small", "AR medium", "AR large"),
)
ROWS = {"bbox": "box", "segm": "mask"}


def evaluate(
    saved_model: str | Path,
    annotation_file: str | Path,
    images: str | Path,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, dict[str, float]]:
    """Evaluates an exported detector on all images of an annotation file, and prints the COCO table.

    Categories are the detector's classes of the same names, whatever their ids; without names, ids are class
    numbers. Detections of classes that are no category are left out.

    Args:
      saved_model: a folder written by `lambdanet.detection.export`.
      annotation_file: a file in COCO's format.
      images: the folder of its images.
      out: a file for the detections in COCO's results format; default: none.
      overwrite: whether it may replace a file.

    Returns:
      For "box", and for "mask" if the detector has masks, the value of each of `COLUMNS`: from 0 to 1, or -1
      if no object of that size is annotated.

    Raises:
      InputError: the annotations, an image or the detector cannot be used, or `out` exists or cannot be
        written.
    """
    file = None if out is None else local_path(out, "out")
    if file:
        check_new(file, overwrite)
    detector, names = load_detector(saved_model)
    annotations.check_annotations(annotation_file, images, masks=False)
    content = annotations.read_annotations(annotation_file)
    ids = {item["name"]: item["id"] for item in content["categories"]}
    if names[1:] == [str(number) for number in range(1, len(names))]:
        ids = {str(number): number for number in ids.values()}
    for name in ids:
        check_known(f"category in {annotation_file}", name, names)
    results = []
    for image in tqdm(content["images"], disable=None, leave=False):
        picture = read_image(
            os.path.join(os.path.expanduser(images), image["file_name"])
        )
        size = image["height"], image["width"]
        annotations.check_size(
            f"{annotation_file}: image {image['id']}", size, picture.shape[:2]
        )
        found = to_coco_detections(detector(picture), *size, min_confidence=0.0)
        for detection in found:
            name = names[detection["category_id"]]
            if name in ids:
                detection["category_id"] = ids[name]
                results.append({"image_id": image["id"], **detection})
    if file:
        write_output(file, json.dumps(results))
    table = average_precision(content, results)
    print(render_table(table), end="")
    return table


def average_precision(
    content: dict[str, Any], results: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Compares detections with the annotations of all images.

    Args:
      content: the content of an annotation file.
      results: detections in COCO's results format, with `image_id`, `category_id`, `bbox`, `score`, and
        optionally `segmentation`.

    Returns:
      As `evaluate`; zeros if there are no detections.
    """
    masks = bool(results) and all("segmentation" in result for result in results)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = _index(content)
        return {
            name: _stats(truth, results, kind)
            for kind, name in ROWS.items()
            if kind == "bbox" or masks
        }


def _index(content: dict[str, Any]) -> COCO:
    coco = COCO()
    # It takes the id 0 for no match, and ids must be numbers.
    numbered = [
        {**annotation, "id": number}
        for number, annotation in enumerate(content["annotations"], 1)
    ]
    coco.dataset = {**content, "annotations": numbered}
    coco.createIndex()
    return coco


def _results(truth: COCO, results: Sequence[dict[str, Any]], kind: str) -> COCO:
    """Returns the detections as pycocotools' object, with the area of the box or of the mask."""
    shape = {"bbox": "bbox", "segm": "segmentation"}[kind]
    keys = ("image_id", "category_id", "score", shape)
    kept = []
    for result in results:
        kept.append({key: result[key] for key in keys})
    return truth.loadRes(kept) if kept else _index({**truth.dataset, "annotations": []})


def _stats(
    truth: COCO, results: Sequence[dict[str, Any]], kind: str
) -> dict[str, float]:
    evaluation = COCOeval(truth, _results(truth, results, kind), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return {
        name: float(np.round(value, 6))
        for name, value in zip(COLUMNS, evaluation.stats, strict=True)
    }


def render_table(table: dict[str, dict[str, float]]) -> str:
    """Returns the table as text, in percent, with a dash if no object of a size is annotated.

    Args:
      table: by kind, "box" or "mask", the value of each of `COLUMNS`, from 0 to 1; -1 without an annotated
        object.
    """
    rows = []
    for kind, values in table.items():
        row = [kind]
        for name in COLUMNS:
            row.append("-" if values[name] < 0 else f"{100 * values[name]:.1f}")
        rows.append(row)
    return text_table.render(["", *COLUMNS], rows)
