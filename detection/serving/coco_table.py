# SPDX-License-Identifier: Apache-2.0
"""The COCO table of an exported detector: its average precision on annotated pictures, by pycocotools."""

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tqdm import tqdm

from lambdanet import text_table
from lambdanet.detection.data import annotations
from lambdanet.detection.data.masks import detections_of
from lambdanet.detection.serving.prediction import load_detector, write_json
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
) -> dict[str, dict[str, float]]:
    """Measures an exported detector on all pictures of an annotation file, and prints the COCO table.

    Args:
      saved_model: a folder that `lambdanet.detection.export` has written.
      annotation_file: in the format of COCO.
      images: folder of its pictures.
      out: file for the detections, as COCO takes them for its own evaluation; None writes none.

    Returns:
      For "box", and for "mask" where the detector gives masks, each column of `COLUMNS`: a share from 0 to 1,
      or -1 where nothing of that size is annotated.

    Raises:
      InputError: the annotations, a picture or the detector cannot be used, or `out` cannot be written.

    Example:
      >>> evaluate("exported/shapes", "shapes/annotations/instances_val.json", "shapes/val")["mask"]["AP"]
    """
    detector, names = load_detector(saved_model)
    annotations.check(annotation_file, images, len(names), masks=False)
    content = annotations.read(annotation_file)
    results = []
    for image in tqdm(content["images"], disable=None, leave=False):
        picture = read_image(os.path.join(os.path.expanduser(images), image["file_name"]))
        size = image["height"], image["width"]
        annotations.check_size(f"{annotation_file}: image {image['id']}", size, picture.shape[:2])
        found = detections_of(detector(picture), *size, min_score=0.0)
        results += [{"image_id": image["id"], **detection} for detection in found]
    if out is not None:
        write_json(results, os.path.expanduser(out))
    table = average_precision(content, results)
    print(render(table), end="")
    return table


def average_precision(
    content: dict[str, Any], results: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Compares detections with annotations, over all images that the annotations list.

    Args:
      content: of an annotation file.
      results: detections as COCO takes them, with `image_id`, `category_id`, `bbox`, `score`, and perhaps
        `segmentation`.

    Returns:
      As `evaluate`; no detection at all gives zeros.
    """
    masks = bool(results) and all("segmentation" in result for result in results)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells how long it takes
        truth = _index(content)
        return {name: _stats(truth, results, kind) for kind, name in ROWS.items() if kind == "bbox" or masks}


def _index(content: dict[str, Any]) -> COCO:
    coco = COCO()
    coco.dataset = content
    coco.createIndex()
    return coco


def _results(truth: COCO, results: Sequence[dict[str, Any]], kind: str) -> COCO:
    """The detections as pycocotools has them: their area is that of the box, or of the mask."""
    shape = {"bbox": "bbox", "segm": "segmentation"}[kind]
    kept = [{key: result[key] for key in ("image_id", "category_id", "score", shape)} for result in results]
    return truth.loadRes(kept) if kept else _index({**truth.dataset, "annotations": []})


def _stats(truth: COCO, results: Sequence[dict[str, Any]], kind: str) -> dict[str, float]:
    evaluation = COCOeval(truth, _results(truth, results, kind), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return {name: float(np.round(value, 6)) for name, value in zip(COLUMNS, evaluation.stats, strict=True)}


def render(table: dict[str, dict[str, float]]) -> str:
    """Returns the table as text, in per cent; a dash where nothing of a size is annotated."""
    cells = {
        kind: ["-" if values[name] < 0 else f"{100 * values[name]:.1f}" for name in COLUMNS]
        for kind, values in table.items()
    }
    return text_table.render(["", *COLUMNS], [[kind, *row] for kind, row in cells.items()])
