# SPDX-License-Identifier: Apache-2.0
"""Writes a data set of drawn shapes: JPEG files, COCO annotations and TFRecords."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanet.core.errors import check_counts, check_natural
from lambdanet.core.files import absolute, atomic_dir, check_output_dir
from lambdanet.detection.data import annotations
from lambdanet.detection.data.drawn_shapes import (
    CLASSES,
    SceneObject,
    draw_scene,
)
from lambdanet.detection.data.masks import mask_to_polygons

SPLITS = ("train", "val")


def write_shapes(
    out: str | Path,
    train: int = 1500,
    val: int = 200,
    seed: int = 0,
    num_shards: int = 4,
) -> str:
    """Writes a data set for instance segmentation that needs no download.

    Of every 20 images, one has no object and two are gray. An image depends only on the seed and its number,
    so a larger data set begins with the images of a smaller one.

        train/, val/   000001.jpg, 000002.jpg, ...
        annotations/   instances_train.json, instances_val.json: the visible part of each object as polygons
        tfrecords/     train-*.tfrecord, val-*.tfrecord, written by Model Garden's converter
        config.yaml    these paths, for lambdanet.detection.train --config_file

    Args:
      out: the folder to write; must be new or empty.
      train: the number of training images.
      val: the number of validation images.
      seed: the random seed, a non-negative integer.
      num_shards: the number of TFRecord files per split.

    Returns:
      The path of the folder.

    Raises:
      InputError: a number is out of range, or `out` is not empty or cannot be written.
    """
    check_counts(train=train, val=val, num_shards=num_shards)
    check_natural("seed", seed)
    check_output_dir(out)
    path = absolute(out)
    with atomic_dir(path) as staging:
        for folder in (*SPLITS, "annotations", "tfrecords"):
            os.makedirs(os.path.join(staging, folder))
        for number, (split, count) in enumerate(zip(SPLITS, (train, val), strict=True)):
            images = os.path.join(staging, split)
            prefix = os.path.join(staging, "tfrecords", split)
            instances = Path(staging, "annotations", f"instances_{split}.json")
            content = _write_images(
                images, count, (seed, number), first_id=1 + number * train
            )
            instances.write_text(json.dumps(content))
            annotations.write_records(instances, images, prefix, num_shards)
        # JSON is YAML too
        Path(staging, "config.yaml").write_text(json.dumps(_config(path), indent=2))
    return path


def _config(path: str) -> dict[str, Any]:
    """Returns the keys of an experiment that hold the paths of its data."""
    train, val = (os.path.join(path, "tfrecords", f"{split}-*") for split in SPLITS)
    return {
        "task": {
            "annotation_file": os.path.join(path, "annotations", "instances_val.json"),
            "train_data": {"input_path": train},
            "validation_data": {"input_path": val},
        }
    }


def _write_images(
    folder: str, count: int, seed: tuple[int, int], first_id: int
) -> dict[str, Any]:
    """Writes the images of a split; returns the content of its annotation file."""
    images: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for index in range(count):
        image, objects = draw_scene((*seed, index), empty=index % 20 == 2)
        name = f"{index + 1:06d}.jpg"
        picture = Image.fromarray(image)
        if index % 10 == 3:
            picture = picture.convert("L")
        picture.save(os.path.join(folder, name), quality=90)
        height, width = image.shape[:2]
        images.append(
            {
                "id": first_id + index,
                "file_name": name,
                "height": height,
                "width": width,
            }
        )
        for item in objects:
            number = 1000 * first_id + len(found)
            found.append(
                {"id": number, "image_id": first_id + index, **_annotation(item)}
            )
    return {
        "info": {"description": "Shapes, drawn by lambdanet", "version": "1"},
        "images": images,
        "annotations": found,
        "categories": [
            {"id": number, "name": name, "supercategory": "shape"}
            for number, name in enumerate(CLASSES, 1)
        ],
    }


def _annotation(item: SceneObject) -> dict[str, Any]:
    rows, columns = np.nonzero(item.mask)
    x = int(columns.min())
    y = int(rows.min())
    return {
        "category_id": CLASSES.index(item.name) + 1,
        "segmentation": mask_to_polygons(item.mask),
        "area": int(np.count_nonzero(item.mask)),
        "bbox": [x, y, int(columns.max()) + 1 - x, int(rows.max()) + 1 - y],
        "iscrowd": 0,
    }
