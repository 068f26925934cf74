# SPDX-License-Identifier: Apache-2.0
"""COCO annotation files: looked through before hours are spent on them, and made into TFRecords.

python -m lambdanet.detection.coco --annotations=instances_train2017.json --images=train2017 --num_classes=91
"""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import tensorflow as tf
from PIL import Image

from lambdanet.errors import InputError
from lambdanet.training.data import class_names as names_of_classes
from lambdanet.training.data.image_bytes import ORIENTATION

OVERHANG = 1.0  # pixels by which a box may reach over the edge: those of COCO itself do by rounding


def read(annotation_file: str | Path) -> dict[str, Any]:
    """Reads an annotation file for objects.

    Raises:
      InputError: there is none, it is no JSON, or it has no images, annotations or categories.
    """
    path = os.path.expanduser(annotation_file)
    expected = "expected the instances file of a COCO data set"
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            content = json.load(file)
    except tf.errors.NotFoundError:
        raise InputError(f"annotation file {path!r} does not exist; {expected}") from None
    except (OSError, tf.errors.OpError, ValueError) as error:
        reason = getattr(error, "message", error)
        raise InputError(f"annotation file {path!r} cannot be read ({reason}); {expected}") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise InputError(f"annotation file {path!r} has no list {key!r}; {expected}")
    return content


def check(
    annotation_file: str | Path,
    images: str | Path | None = None,
    num_classes: int | None = None,
    masks: bool = True,
) -> dict[str, int]:
    """Refuses an annotation file that would make training fail, or go wrong in silence.

    Args:
      annotation_file: in the format of COCO.
      images: folder in which each picture must lie, in the size that is annotated; None: no look at them.
      num_classes: of the model, the background included: ids of categories must lie below; None: any.
      masks: whether each object must have one.

    Returns:
      The number of `images`, `objects`, `crowds`, `categories`, and of objects that Model Garden's converter
      leaves out (`left_out`): their box is empty, or reaches over the edge by up to a pixel.

    Raises:
      InputError: with the file, the id of the annotation, what was found and what is accepted.

    Example:
      >>> check("instances_val2017.json", "val2017", num_classes=91)["objects"]
    """
    path, content = os.path.expanduser(annotation_file), read(annotation_file)
    sizes = _check_images(path, content["images"], images)
    categories = _check_categories(path, content["categories"], num_classes)
    found = {"images": len(sizes), "objects": 0, "crowds": 0, "categories": len(categories), "left_out": 0}
    seen: set[int] = set()
    for annotation in content["annotations"]:
        where = _where(path, annotation, seen)
        _check_references(where, annotation, sizes, categories, path)
        size = sizes[annotation["image_id"]]
        found["left_out"] += _check_box(where, annotation.get("bbox"), size)
        if masks:
            _check_mask(where, annotation, size)
        found["crowds" if annotation["iscrowd"] else "objects"] += 1
    return found


def _check_images(
    path: str, images: list[Mapping[str, Any]], folder: str | Path | None
) -> dict[Any, tuple[int, int]]:
    """Returns the height and width of each image by its id."""
    sizes: dict[Any, tuple[int, int]] = {}
    listed: dict[str, set[str]] = {}
    for image in images:
        if not isinstance(image, dict) or not {"id", "file_name", "height", "width"} <= image.keys():
            raise InputError(f"{path}: image {image!r:.80} lacks id, file_name, height or width")
        where = f"{path}: image {image['id']}"
        if not isinstance(image["id"], int) or image["id"] in sizes:
            raise InputError(f"{where} cannot be told apart; expected whole numbers as ids, each once")
        if not all(isinstance(image[side], int) and image[side] > 0 for side in ("height", "width")):
            raise InputError(
                f"{where} has height={image['height']!r}, width={image['width']!r}; expected pixels, from 1"
            )
        size = sizes[image["id"]] = image["height"], image["width"]
        if folder is not None:
            _check_file(where, os.path.join(os.path.expanduser(folder), image["file_name"]), size, listed)
    return sizes


def _check_file(where: str, picture: str, size: tuple[int, int], listed: dict[str, set[str]]) -> None:
    """Looks for a picture in its folder, which is listed only once, and compares its size with `size`."""
    folder, name = os.path.split(picture)
    if folder not in listed:
        listed[folder] = set(tf.io.gfile.listdir(folder)) if tf.io.gfile.isdir(folder) else set()
    if name not in listed[folder]:
        raise InputError(f"{where} is the file {picture!r}, which does not exist")
    try:
        with _open_binary(picture) as file, Image.open(file) as image:
            exif = Image.Exif()
            exif.load(image.info.get("exif", b""))
            found = image.size if exif.get(ORIENTATION, 1) >= 5 else image.size[::-1]
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise InputError(f"{where} is the file {picture!r}, which is no picture ({error})") from None
    check_size(where, size, found)


def _open_binary(path: str) -> IO[bytes]:
    """Opens a local file as it is; one in a bucket is read whole, for Pillow reads beyond the end."""
    if os.path.isfile(path):
        return open(path, "rb")
    with tf.io.gfile.GFile(path, "rb") as file:
        return io.BytesIO(file.read())


def check_size(where: str, annotated: tuple[int, int], found: tuple[int, int]) -> None:
    """Refuses a picture whose height and width are not those that its annotations were made for.

    Args:
      where: names the image in an error.
      annotated: height and width in pixels.
      found: those of its file, turned upright as its EXIF orientation says.
    """
    if tuple(annotated) != tuple(found):
        raise InputError(
            f"{where} is annotated as {annotated[0]}x{annotated[1]} pixels, and its file has "
            f"{found[0]}x{found[1]} pixels (height x width, when upright)"
        )


def _check_categories(
    path: str, categories: list[Mapping[str, Any]], num_classes: int | None
) -> dict[Any, str]:
    """Returns the name of each category by its id."""
    names = {}
    for category in categories:
        if not isinstance(category, dict) or not {"id", "name"} <= category.keys():
            raise InputError(f"{path}: category {category!r:.80} lacks id or name")
        number, name = category["id"], category["name"]
        if not isinstance(number, int) or number < 1:
            raise InputError(
                f"{path}: category {name!r} has the id {number!r}; expected a whole number from 1 (0 is the "
                "background)"
            )
        if num_classes is not None and number >= num_classes:
            raise InputError(
                f"{path}: category {name!r} has the id {number}, but num_classes={num_classes}, with the "
                f"background; expected ids up to {num_classes - 1}, or num_classes={number + 1} or more"
            )
        names[number] = name
    names_of_classes.check(list(names.values()), f"the categories of {path}")
    return names


def _where(path: str, annotation: Any, seen: set[int]) -> str:
    """Returns how an annotation is named in errors, after a look at its keys and its id."""
    needed = {"id", "image_id", "category_id", "iscrowd", "area"}
    if not isinstance(annotation, dict) or not needed <= annotation.keys():
        lacks = ", ".join(sorted(needed - annotation.keys())) if isinstance(annotation, dict) else "keys"
        raise InputError(f"{path}: annotation {annotation!r:.80} lacks {lacks}")
    where = f"{path}: annotation {annotation['id']}"
    if annotation["id"] in seen:
        raise InputError(f"{where} is there twice; expected each id once")
    seen.add(annotation["id"])
    return where


def _check_references(
    where: str,
    annotation: Mapping[str, Any],
    sizes: Mapping[Any, tuple[int, int]],
    categories: Mapping[Any, str],
    path: str,
) -> None:
    if annotation["image_id"] not in sizes:
        raise InputError(f"{where} is of the image {annotation['image_id']!r}, which {path} does not list")
    if annotation["category_id"] not in categories:
        raise InputError(
            f"{where} is of the category {annotation['category_id']!r}; accepted: {sorted(categories)}"
        )


def _check_box(where: str, box: Any, size: tuple[int, int]) -> bool:
    """Refuses a box that does not lie in its image; returns whether the converter leaves it out."""
    height, width = size
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(n, int | float) for n in box):
        raise InputError(f"{where} has the bbox {box!r}; expected [x, y, width, height] in pixels")
    x, y, box_width, box_height = box
    over = max(-x, -y, x + box_width - width, y + box_height - height)
    if not over <= OVERHANG:  # not a number is refused too
        raise InputError(
            f"{where} has the bbox {box} (x, y, width, height) in an image of {width}x{height} pixels; "
            "expected a box inside it"
        )
    return box_width <= 0 or box_height <= 0 or x + box_width > width or y + box_height > height


def _check_mask(where: str, annotation: Mapping[str, Any], size: tuple[int, int]) -> None:
    mask = annotation.get("segmentation")
    if not mask:
        raise InputError(
            f"{where} has no mask (segmentation={mask!r}); expected one, or a model without masks "
            "(task.model.include_mask=false)"
        )
    if annotation["iscrowd"]:
        if not isinstance(mask, dict) or not {"counts", "size"} <= mask.keys():
            raise InputError(
                f"{where} is a crowd without run lengths; expected segmentation.counts and .size"
            )
        if list(mask["size"]) != list(size):
            raise InputError(
                f"{where} has a mask of {mask['size']} pixels in an image of {list(size)} (height, width)"
            )
    elif not isinstance(mask, list) or any(not isinstance(p, list) or len(p) < 6 or len(p) % 2 for p in mask):
        raise InputError(
            f"{where} is no crowd, and its segmentation is no list of polygons; expected "
            "[[x, y, x, y, x, y, ...], ...]"
        )


def class_names(annotation_file: str | Path, num_classes: int) -> list[str]:
    """Returns the names of the classes of a model, by the number that it gives them.

    The first is the background, and numbers that no category has are called by their number.

    Raises:
      InputError: the file cannot be read, or a category does not fit in.
    """
    path = os.path.expanduser(annotation_file)
    categories = _check_categories(path, read(path)["categories"], num_classes)
    return ["background", *(categories.get(number, str(number)) for number in range(1, num_classes))]


def write_records(
    annotation_file: str | Path, images: str | Path, prefix: str | Path, num_shards: int, masks: bool = True
) -> int:
    """Writes TFRecords with the functions of Model Garden's `create_coco_tf_record`.

    One picture is held in memory at a time.

    Args:
      annotation_file: in the format of COCO; `check` it before.
      images: folder of the pictures.
      prefix: what the files are called, before `-00000-of-00004.tfrecord`.
      num_shards: number of files.
      masks: whether masks are written too.

    Returns:
      The number of objects left out, because their box is empty or reaches over the edge.
    """
    from lambdanet.detection import model_garden  # noqa: F401  before what else is used of Model Garden

    # isort: split
    from official.vision.data import create_coco_tf_record, tfrecord_lib

    content = read(annotation_file)
    objects: dict[Any, list[Any]] = {}
    for annotation in content["annotations"]:
        objects.setdefault(annotation["image_id"], []).append(annotation)
    names = {category["id"]: category["name"] for category in content["categories"]}
    examples = create_coco_tf_record.generate_annotations(
        content["images"],
        [str(images)],
        img_to_obj_annotation=objects,
        id_to_name_map=names,
        include_masks=masks,
    )
    return tfrecord_lib.write_tf_record_dataset(
        str(prefix), examples, create_coco_tf_record.create_tf_example, num_shards, multiple_processes=0
    )
