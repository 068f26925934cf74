# SPDX-License-Identifier: Apache-2.0
"""Reads, checks and converts COCO annotation files."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import read_remote
from lambdanet.training.data.class_names import check_names
from lambdanet.training.data.image_bytes import ORIENTATION

REQUIRED_KEYS = {"id", "image_id", "category_id", "iscrowd", "area"}
# Pixels by which a box may cross the edge; some of COCO do because of rounding.
BOX_TOLERANCE = 1.0

Size = tuple[int, int]  # height and width


def read_annotations(annotation_file: str | Path) -> dict[str, Any]:
    """Reads an annotation file for objects.

    Args:
      annotation_file: the path of a file in COCO's format.

    Returns:
      Its content; `images`, `annotations` and `categories` are lists, whose items are not checked.

    Raises:
      InputError: the file does not exist, is not JSON, or lacks images, annotations or categories.
    """
    path = os.path.expanduser(annotation_file)

    def invalid_file(reason: str) -> InputError:
        return invalid(
            "annotation_file", "the instances file of a COCO data set", path, reason
        )

    try:
        content = json.loads(read_remote(path))
    except tf.errors.NotFoundError:
        raise invalid_file("it does not exist") from None
    except (OSError, tf.errors.OpError, ValueError) as error:
        raise invalid_file(f"it cannot be read ({one_line(error)})") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise invalid_file(f"it has no list {key!r}")
    return content


def check_annotations(
    annotation_file: str | Path,
    images: str | Path | None = None,
    num_classes: int | None = None,
    masks: bool = True,
) -> dict[str, int]:
    """Rejects an annotation file that would make training fail, or silently train on wrong data.

    Args:
      annotation_file: a file in COCO's format.
      images: the folder of the images, whose sizes are compared; None: images are not checked.
      num_classes: the number of classes of the model, background included; None: any.
      masks: whether each object must have a mask.

    Returns:
      The number of `images`, `objects`, `crowds`, `categories`, and `left_out`: objects that Model Garden's
      converter drops because their box is empty or crosses the edge by up to a pixel.

    Raises:
      InputError: the first error, with the file and the id of the annotation.
    """
    path = os.path.expanduser(annotation_file)
    content = read_annotations(annotation_file)
    sizes = check_images(path, content["images"], images)
    categories = _check_categories(path, content["categories"], num_classes)
    found = {
        "images": len(sizes),
        "objects": 0,
        "crowds": 0,
        "categories": len(categories),
        "left_out": 0,
    }
    seen: set[Any] = set()
    largest = 0.0
    outside: list[InputError] = []
    for annotation in content["annotations"]:
        where = _where(path, annotation, seen)
        if annotation["image_id"] not in sizes:
            raise invalid(
                f"{where}: image_id",
                "the id of an image in this file",
                annotation["image_id"],
            )
        if annotation["category_id"] not in categories:
            accepted = f"one of {sorted(categories)}"
            raise invalid(f"{where}: category_id", accepted, annotation["category_id"])
        size = sizes[annotation["image_id"]]
        box = _check_box(where, annotation.get("bbox"))
        if not _overhang(box, size) <= BOX_TOLERANCE:  # NaN too
            accepted = f"inside the image of {size[1]}x{size[0]} pixels"
            outside.append(
                invalid(f"{where}: bbox [x, y, width, height]", accepted, box)
            )
        is_dropped = _is_dropped(box, size)
        found["left_out"] += is_dropped
        if annotation["iscrowd"] not in (0, 1):
            raise invalid(f"{where}: iscrowd", "0 or 1", annotation["iscrowd"])
        area = annotation["area"]
        is_empty = area == 0 and not masks  # of a detection whose mask has no pixel
        if not (is_dropped or area > 0 or is_empty):  # NaN too
            raise invalid(f"{where}: area", "above 0", area)
        if masks:
            _check_mask(where, annotation, size)
            if not (is_dropped or annotation["iscrowd"] or outside):
                _check_inside(where, annotation["segmentation"], box)
        largest = max(largest, *box)
        found["crowds" if annotation["iscrowd"] else "objects"] += 1
    if outside:
        count = f"{len(outside)} of {len(content['annotations'])} boxes are not"
        raise InputError(
            f"{outside[0]}; {count}; the conversion drops those that end outside"
        )
    if found["objects"] and largest <= 1:
        accepted = "in pixels, [x, y, width, height]"
        raise invalid(f"{path}: boxes", accepted, "from 0 to 1")
    return found


def check_images(
    path: str, images: list[Mapping[str, Any]], folder: str | Path | None
) -> dict[Any, Size]:
    """Checks the images; returns the height and width of each by its id."""
    sizes: dict[Any, Size] = {}
    listed: dict[str, set[str]] = {}
    for image in images:
        if (
            not isinstance(image, dict)
            or not {"id", "file_name", "height", "width"} <= image.keys()
        ):
            raise invalid(
                f"{path}: image",
                "an object with id, file_name, height and width",
                image,
            )
        where = f"{path}: image {image['id']}"
        if not isinstance(image["id"], int) or image["id"] in sizes:
            raise invalid(f"{where}: id", "a unique integer", image["id"])
        size = image["height"], image["width"]
        if not all(isinstance(side, int) and side > 0 for side in size):
            raise invalid(f"{where}: (height, width)", "positive integers", size)
        sizes[image["id"]] = size
        if folder is not None:
            _check_file(
                where,
                os.path.join(os.path.expanduser(folder), image["file_name"]),
                size,
                listed,
            )
    return sizes


def _check_file(
    where: str, picture: str, size: Size, listed: dict[str, set[str]]
) -> None:
    """Checks that an image file exists, by listing each folder once, and that it has the annotated size."""
    folder, name = os.path.split(picture)
    if folder not in listed:
        listed[folder] = (
            set(tf.io.gfile.listdir(folder)) if tf.io.gfile.isdir(folder) else set()
        )
    if name not in listed[folder]:
        raise InputError(f"{where}: file {picture!r} does not exist")
    try:
        with _open_binary(picture) as file, Image.open(file) as image:
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))
            found = image.size if exif.get(ORIENTATION, 1) >= 5 else image.size[::-1]
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise InputError(
            f"{where}: file {picture!r} is not an image ({one_line(error)})"
        ) from None
    check_size(where, size, found)


def _open_binary(path: str) -> IO[bytes]:
    """Opens a local file; reads a remote one completely, because Pillow reads beyond its end."""
    if os.path.isfile(path):
        return open(path, "rb")
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def check_size(where: str, annotated: Size, found: Size) -> None:
    """Rejects an image whose size differs from the annotated one.

    Args:
      where: the name of the image in the message.
      annotated: the annotated height and width in pixels.
      found: the height and width of the file, rotated upright by its EXIF orientation.
    """
    if tuple(annotated) != tuple(found):
        raise InputError(
            f"{where}: height x width must be {found[0]}x{found[1]} as in the upright file, got "
            f"{annotated[0]}x{annotated[1]}"
        )


def _check_categories(
    path: str, categories: list[Mapping[str, Any]], num_classes: int | None
) -> dict[Any, str]:
    """Checks the categories; returns the name of each by its id."""
    names = {}
    numbers = [
        category.get("id") for category in categories if isinstance(category, dict)
    ]
    needed = 1 + max(
        [number for number in numbers if isinstance(number, int)], default=0
    )
    for category in categories:
        if not isinstance(category, dict) or not {"id", "name"} <= category.keys():
            raise invalid(f"{path}: category", "an object with id and name", category)
        number = category["id"]
        name = category["name"]
        where = f"{path}: id of category {name!r}"
        if not isinstance(number, int) or number < 1:
            hint = "where ids begin with 0, add 1 to each id and each category_id"
            raise invalid(
                where, "a positive integer (0 is the background)", number, hint
            )
        if num_classes is not None and number >= num_classes:
            accepted = (
                f"less than num_classes={num_classes}, which counts the background"
            )
            raise invalid(where, accepted, number, f"num_classes={needed} would do")
        names[number] = name
    check_names(list(names.values()), f"the categories of {path}")
    return names


def _where(path: str, annotation: Any, seen: set[int]) -> str:
    """Checks the keys and the id of an annotation; returns its name for messages."""
    if not isinstance(annotation, dict) or not REQUIRED_KEYS <= annotation.keys():
        missing = (
            sorted(REQUIRED_KEYS - annotation.keys())
            if isinstance(annotation, dict)
            else ["keys"]
        )
        accepted = f"an object with {', '.join(sorted(REQUIRED_KEYS))}"
        raise invalid(
            f"{path}: annotation",
            accepted,
            annotation,
            f"missing: {', '.join(missing)}",
        )
    where = f"{path}: annotation {annotation['id']}"
    if annotation["id"] in seen:
        raise invalid(f"{where}: id", "unique", annotation["id"])
    seen.add(annotation["id"])
    return where


def _check_box(where: str, box: Any) -> list[float]:
    """Returns a box; rejects what is not four numbers."""
    if (
        not isinstance(box, list)
        or len(box) != 4
        or not all(isinstance(n, int | float) for n in box)
    ):
        raise invalid(f"{where}: bbox", "[x, y, width, height] in pixels", box)
    return box


def _overhang(box: list[float], size: Size) -> float:
    """Returns the pixels by which a box crosses the edge of its image; at most 0 inside."""
    height, width = size
    x, y, box_width, box_height = box
    return max(-x, -y, x + box_width - width, y + box_height - height)


def _is_dropped(box: list[float], size: Size) -> bool:
    """Returns whether Model Garden's converter drops an object: its box is empty, or ends outside."""
    height, width = size
    x, y, box_width, box_height = box
    return (
        box_width <= 0
        or box_height <= 0
        or x + box_width > width
        or y + box_height > height
    )


def _check_mask(where: str, annotation: Mapping[str, Any], size: Size) -> None:
    mask = annotation.get("segmentation")
    name = f"{where}: segmentation"
    hint = "" if mask else "a model with task.model.include_mask=false needs no masks"
    if annotation["iscrowd"]:
        if not isinstance(mask, dict) or not {"counts", "size"} <= mask.keys():
            raise invalid(
                name, 'run lengths {"counts": ..., "size": ...} for a crowd', mask, hint
            )
        if list(mask["size"]) != list(size):
            raise invalid(
                f"{name}.size",
                f"{list(size)}, the height and width of its image",
                mask["size"],
            )
        counts = mask["counts"]
        if isinstance(counts, list) and sum(counts) != size[0] * size[1]:
            accepted = f"{size[0] * size[1]} pixels in all"
            raise invalid(f"{name}.counts", accepted, sum(counts))
    elif not mask or not isinstance(mask, list) or not all(map(_is_polygon, mask)):
        if isinstance(mask, dict):
            hint = "run lengths need iscrowd=1; for one object, write the outline of its mask as polygons"
        raise invalid(name, "polygons [[x, y, x, y, x, y, ...], ...]", mask, hint)


def _check_inside(where: str, polygons: list[list[float]], box: list[float]) -> None:
    """Rejects polygons that end outside of their box, or are not numbers."""
    corner = np.array(box[:2]) - BOX_TOLERANCE
    opposite = corner + box[2:] + 2 * BOX_TOLERANCE
    for polygon in polygons:
        points = np.reshape(np.array(polygon, float), [-1, 2])
        if not np.all((corner <= points) & (points <= opposite)):  # NaN too
            raise invalid(f"{where}: segmentation", f"inside its box {box}", polygon)


def _is_polygon(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= 6 and len(value) % 2 == 0


def read_class_names(annotation_file: str | Path, num_classes: int) -> list[str]:
    """Returns the name of each class of a model, in the order of its class numbers.

    The first is the background. A number without a category is its own name.

    Args:
      annotation_file: the path of a file in COCO's format.
      num_classes: the number of classes of the model, background included.

    Raises:
      InputError: the file cannot be read, or the id of a category is out of range.
    """
    path = os.path.expanduser(annotation_file)
    categories = _check_categories(
        path, read_annotations(path)["categories"], num_classes
    )
    return [
        "background",
        *(categories.get(number, str(number)) for number in range(1, num_classes)),
    ]


def write_records(
    annotation_file: str | Path, images: str | Path, prefix: str | Path, num_shards: int
) -> int:
    """Writes TFRecords with the functions of Model Garden's `create_coco_tf_record`, one image at a time.

    Args:
      annotation_file: a file in COCO's format that passes `check_annotations`.
      images: the folder of the images.
      prefix: the beginning of the file names, followed by `-00000-of-00004.tfrecord` and so on.
      num_shards: the number of files.

    Returns:
      The number of dropped objects, whose box is empty or crosses the edge.
    """
    from lambdanet.detection import model_garden  # noqa: F401  first, to hide tensorflow-text

    # isort: split
    from official.vision.data import create_coco_tf_record, tfrecord_lib

    content = read_annotations(annotation_file)
    objects: dict[Any, list[Any]] = {}
    for annotation in content["annotations"]:
        objects.setdefault(annotation["image_id"], []).append(annotation)
    names = {category["id"]: category["name"] for category in content["categories"]}
    examples = create_coco_tf_record.generate_annotations(
        content["images"],
        [str(images)],
        img_to_obj_annotation=objects,
        id_to_name_map=names,
        include_masks=True,
    )
    return tfrecord_lib.write_tf_record_dataset(
        str(prefix),
        examples,
        create_coco_tf_record.create_tf_example,
        num_shards,
        multiple_processes=0,
    )
