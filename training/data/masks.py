# SPDX-License-Identifier: Apache-2.0
"""Pictures with masks, of the dataset `folder` with the task `segmentation`.

    PICTURES/classes.txt
    PICTURES/train/images/*.jpg         PICTURES/train/masks/*.png
    PICTURES/validation/images/*.jpg    PICTURES/validation/masks/*.png

A mask is a PNG with the name of its picture, of the same size. Its pixels are the numbers of the lines of
classes.txt, from 0, in gray levels or in a palette; 255 is ignored. Without the folder `train`, `images` and
`masks` are those of PICTURES. Without a folder for evaluation, one of five pictures is held out for it. Or a
table has them, with the columns file, mask and split.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet.errors import invalid
from lambdanet.training.data.class_names import IGNORED, read_class_map
from lambdanet.training.data.folder import held_out
from lambdanet.training.data.image_files import find_pictures
from lambdanet.training.data.tables import TableSource, read_rows

COLUMNS = ("file", "mask", "split")
CLASSES = "classes.txt"
LAYOUT = "train/images/*.jpg and train/masks/*.png"
GRAY = ("1", "L", "P")  # modes of Pillow
ORIENTATION = 0x0112  # a tag of EXIF
SIDEWAYS = 5  # the first of its values with which height and width change places
NUM_CHECKED = 100  # masks of a split


class MaskSource(TableSource):
    """The pictures of a folder or a table, each with the path of its mask; a `sources.Source`.

    `InputError` where a folder, a picture's mask or classes.txt is missing, and as of `TableSource`.
    """

    label_type = tf.string

    def _read_rows(self) -> list[dict[str, str]]:
        if not self._recipe.labels:
            return self._rows_of_folders()
        rows = read_rows(self._table, COLUMNS)
        for row in rows:
            row["label"] = row.pop("mask")
        return rows

    def _rows_of_folders(self) -> list[dict[str, str]]:
        root = Path(self._root)
        rows = []
        for images in sorted((*root.glob("images"), *root.glob("*/images"))):
            folder = images.parent
            split = self._recipe.train_split if folder == root else folder.name
            for picture in find_pictures(images)[0]:
                name = Path(picture).relative_to(images).with_suffix(".png")
                mask = folder / "masks" / name
                if not mask.is_file():
                    raise invalid(
                        f"mask of {picture!r}", f"the file {str(mask)!r}", "none"
                    )
                file = os.path.relpath(picture, root)
                label = os.path.relpath(mask, root)
                rows.append({"file": file, "label": label, "split": split})
        if not rows:
            accepted = f"the folder of the pictures, with {LAYOUT}"
            raise invalid("data_dir", accepted, self._root or None)
        return rows

    def _find_classes(self, rows: list[dict[str, str]]) -> list[str]:
        del rows
        folders = (self._root, os.path.dirname(self._table))
        files = [file for file in (Path(x, CLASSES) for x in folders) if file.is_file()]
        if not files:
            hint = "it names the classes of the masks, one per line, from 0 on"
            raise invalid("data_dir", f"a folder with {CLASSES}", self._root, hint)
        names = read_class_map(files[0])
        if len(names) > IGNORED:
            raise invalid(
                f"lines of {str(files[0])!r}", f"at most {IGNORED}", len(names)
            )
        return names

    def _label(self, row: dict[str, str]) -> bytes:
        return os.fsencode(os.path.join(self._root, row["label"]))

    def hold_out(self, names: Sequence[str]) -> None:
        """Holds out these pictures, or one of five, where no folder has the evaluation split."""
        recipe = self._recipe
        if recipe.labels or any(
            row["split"] == recipe.eval_split for row in self._rows
        ):
            return
        if not any(os.path.exists(os.path.join(self._root, name)) for name in names):
            names = held_out([row["file"] for row in self._split(recipe.train_split)])
        self.held_out = names
        for row in self._rows:
            if row["file"] in names:
                row["split"] = recipe.eval_split
        print(
            f"no folder {recipe.eval_split!r} in {self._root!r}: {recipe.eval_split} is {len(names)} of the "
            f"pictures of {recipe.train_split}",
            flush=True,
        )

    def files(self, split: str) -> list[tuple[str, Any]]:
        # In another folder, the same files have other paths.
        return [(path, os.path.basename(mask)) for path, mask in super().files(split)]

    def mask(self, example: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the mask of an example, uint8 [h, w], with the numbers of the classes in their order."""
        read = tf.numpy_function(_read_numbers, [self.label(example)], tf.uint8)
        mask = tf.ensure_shape(read, [None, None])
        if not self.numbers:
            return mask
        # Of each number in a mask that of the class; all classes of the data are known.
        others = [IGNORED] * (IGNORED + 1 - len(self.numbers))
        numbers = tf.constant([*self.numbers, *others], tf.uint8)
        return tf.gather(numbers, tf.cast(mask, tf.int32))

    def check_readable(self, split: str) -> None:
        """Checks the sizes of all masks of a split, and the numbers in the first `NUM_CHECKED`."""
        super().check_readable(split)
        found: set[int] = set()
        for number, (path, mask) in enumerate(super().files(split)):
            mask = os.fsdecode(mask)
            size = _size(path)
            if size is None:  # a bad record
                continue
            if _size(mask) != size:
                accepted = f"{size[0]} x {size[1]} pixels, as its picture"
                raise invalid(f"mask {mask!r}", accepted, _size(mask))
            if number < NUM_CHECKED:
                found.update(np.unique(read_mask(mask)).tolist())
                self._check_numbers(found, mask)
        if len(found - {IGNORED}) < 2:
            hint = f"{IGNORED} is ignored"
            accepted = "pixels of two classes or more"
            raise invalid(f"masks of split {split!r}", accepted, sorted(found), hint)

    def _check_numbers(self, found: set[int], mask: str) -> None:
        wrong = [x for x in found if len(self.class_names) <= x != IGNORED]
        if wrong:
            last = len(self.class_names) - 1
            accepted = f"from 0 to {last}, the lines of {CLASSES}, or {IGNORED}, which is ignored"
            raise invalid(f"pixels of mask {mask!r}", accepted, wrong[0])


def read_mask(path: str | Path) -> np.ndarray:
    """Returns the numbers in a mask, uint8 [h, w].

    Raises:
      InputError: it is no PNG with gray levels or a palette, in at most 8 bits.
    """
    try:
        with Image.open(path) as image:
            if image.format == "PNG" and image.mode in GRAY:
                return np.asarray(image).astype(np.uint8)
            found = f"{image.format} of the mode {image.mode}"
    except (OSError, ValueError) as error:
        found = str(error)
    accepted = (
        "a PNG with the number of a class in each pixel, as gray levels or in a palette"
    )
    raise invalid(f"mask {str(path)!r}", accepted, found)


def _read_numbers(path: bytes) -> np.ndarray:
    return read_mask(os.fsdecode(path))


def _size(path: str) -> tuple[int, int] | None:
    """Returns the width and height of an upright picture, from its header; None where it is damaged."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            is_sideways = image.getexif().get(ORIENTATION, 1) >= SIDEWAYS
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return (height, width) if is_sideways else (width, height)
