# SPDX-License-Identifier: Apache-2.0
"""Writes pictures of shapes as a COCO data set: JPEG files, annotations, and TFRecords."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanet.detection.data import annotations
from lambdanet.detection.data.polygons import polygons, run_lengths
from lambdanet.detection.data.scenes import CLASSES, Thing, scene
from lambdanet.errors import InputError, check_counts
from lambdanet.files import absolute, atomic_dir, check_output_dir

SPLITS = ("train", "val")
NUM_CLASSES = len(CLASSES) + 1  # with the background


def write_shapes(
    out: str | Path, train: int = 1500, val: int = 200, seed: int = 0, num_shards: int = 4
) -> str:
    """Writes a data set for instance segmentation that needs no download.

    Of every 20 pictures one has no object, two are grey, and about two have a crowd region; one in 40 has
    nothing but a crowd. A picture depends on the seed and its number alone, so that a larger set begins
    with the pictures of a smaller one.

    train/, val/      000001.jpg and so on
    annotations/      instances_train.json, instances_val.json: polygons and, for crowds, run lengths of what
                      can be seen of each object
    tfrecords/        train-*.tfrecord, val-*.tfrecord, as Model Garden's converter makes them
    config.yaml       tells an experiment where all this is: lambdanet.detection.train --config_file

    Args:
      out: the folder to write; it must not exist yet, or be empty.
      train: number of pictures to train with.
      val: number of pictures to measure with.
      seed: whole number from 0; another one gives other pictures.
      num_shards: number of TFRecords of each split.

    Returns:
      The path of the folder.

    Raises:
      InputError: a number is out of range, or `out` is taken or cannot be written.

    Example:
      >>> write_shapes("shapes", train=100, val=20)
    """
    check_counts(train=train, val=val, num_shards=num_shards)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r} cannot be used; expected a whole number from 0")
    check_output_dir(out)
    path = absolute(out)
    with atomic_dir(path) as staging:
        for folder in (*SPLITS, "annotations", "tfrecords"):
            os.makedirs(os.path.join(staging, folder))
        for number, (split, count) in enumerate(zip(SPLITS, (train, val), strict=True)):
            pictures = os.path.join(staging, split)
            instances = os.path.join(staging, "annotations", f"instances_{split}.json")
            first_id = 1 + number * train
            content = _write_pictures(pictures, count, (seed, number), first_id)
            with open(instances, "w", encoding="utf-8") as file:
                json.dump(content, file)
            annotations.check(instances, pictures, NUM_CLASSES)
            prefix = os.path.join(staging, "tfrecords", split)
            annotations.write_records(instances, pictures, prefix, num_shards)
        with open(os.path.join(staging, "config.yaml"), "w", encoding="utf-8") as file:
            json.dump(_config(path), file, indent=2)  # JSON is YAML too
    return path


def _config(path: str) -> dict[str, Any]:
    """The keys of an experiment that say where its data are."""
    train, val = (os.path.join(path, "tfrecords", f"{split}-*") for split in SPLITS)
    return {
        "task": {
            "annotation_file": os.path.join(path, "annotations", "instances_val.json"),
            "train_data": {"input_path": train},
            "validation_data": {"input_path": val},
        }
    }


def _write_pictures(folder: str, count: int, seed: tuple[int, int], first_id: int) -> dict[str, Any]:
    """Writes the pictures of a split; returns what its annotation file holds."""
    images: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    for index in range(count):
        lonely_crowd = index % 40 == 4
        picture, things = scene(
            (*seed, index), empty=index % 20 == 2 or lonely_crowd, crowd=index % 10 == 1 or lonely_crowd
        )
        name = f"{index + 1:06d}.jpg"
        _save(picture, os.path.join(folder, name), grey=index % 10 == 3)
        height, width = picture.shape[:2]
        images.append({"id": first_id + index, "file_name": name, "height": height, "width": width})
        for thing in things:
            number = 1000 * first_id + len(objects)
            objects.append({"id": number, "image_id": first_id + index, **_annotation(thing)})
    return {
        "info": {"description": "Shapes, drawn by lambdanet", "version": "1"},
        "images": images,
        "annotations": objects,
        "categories": [
            {"id": number, "name": name, "supercategory": "shape"} for number, name in enumerate(CLASSES, 1)
        ],
    }


def _save(picture: np.ndarray, path: str, grey: bool) -> None:
    image = Image.fromarray(picture)
    (image.convert("L") if grey else image).save(path, quality=90)


def _annotation(thing: Thing) -> dict[str, Any]:
    rows, columns = (np.flatnonzero(thing.mask.any(axis=axis)) for axis in (1, 0))
    x, y = int(columns[0]), int(rows[0])
    return {
        "category_id": CLASSES.index(thing.name) + 1,
        "segmentation": run_lengths(thing.mask) if thing.crowd else polygons(thing.mask),
        "area": int(np.count_nonzero(thing.mask)),
        "bbox": [x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y],
        "iscrowd": int(thing.crowd),
    }
