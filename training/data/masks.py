# SPDX-License-Identifier: Apache-2.0
"""Pictures with masks, of the dataset `folder` with the task `segmentation`.

    PICTURES/classes.txt
    PICTURES/train/images/*.jpg         PICTURES/train/masks/*.png
    PICTURES/validation/images/*.jpg    PICTURES/validation/masks/*.png

A mask is a PNG with the name of its picture, of the same size. Its pixels are the numbers of the lines of
classes.txt, from 0, in gray levels or in a palette; 255 is ignored. Without the folder `train`, `images` and
`masks` are those of PICTURES. Without any other folder, one of five pictures is held out for evaluation. Or a
table has them, with the columns file, mask and split.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet.errors import InputError, invalid
from lambdanet.training.data.class_names import IGNORED, read_class_map
from lambdanet.training.data.folder import held_out
from lambdanet.training.data.image_files import find_pictures, read_image
from lambdanet.training.data.tables import TableSource, read_rows

COLUMNS = ("file", "mask", "split")
CLASSES = "classes.txt"
LAYOUT = "train/images/*.jpg and train/masks/*.png"
KINDS = ("PNG 1", "PNG L", "PNG P")  # format and mode of Pillow
NUM_CHECKED = 100  # masks of a split

_print_once = functools.cache(functools.partial(print, flush=True))


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
            masks = folder / "masks"
            if not masks.is_dir():  # as of pictures to predict
                continue
            split = self._recipe.train_split if folder == root else folder.name
            for picture in find_pictures(images)[0]:
                name = Path(picture).relative_to(images).with_suffix(".png")
                mask = masks / name
                if not mask.is_file():
                    raise invalid(
                        f"mask of {picture!r}", f"the file {str(mask)!r}", "none"
                    )
                file = os.path.relpath(picture, root)
                label = os.path.relpath(mask, root)
                rows.append({"file": file, "label": label, "split": split})
        if not rows:
            accepted = f"the folder of the pictures, with {LAYOUT}"
            raise invalid("data_dir", accepted, self._root)
        return rows

    def _find_classes(self, rows: list[dict[str, str]]) -> list[str]:
        names = read_class_map(os.path.join(self._root, CLASSES))
        if len(names) > IGNORED:
            raise invalid(f"lines of {CLASSES}", f"at most {IGNORED}", len(names))
        return names

    def _label(self, row: dict[str, str]) -> bytes:
        return os.fsencode(os.path.join(self._root, row["label"]))

    def hold_out(self, names: Sequence[str]) -> None:
        """Holds out these pictures, or one of five, where all folders are of training."""
        recipe = self._recipe
        if recipe.labels or any(
            row["split"] != recipe.train_split for row in self._rows
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

    def pair(self, example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the picture of an example, and its mask, which has the same size."""
        pixels = self.image(example).pixels()
        return pixels, self.mask(example, tf.shape(pixels)[:2])

    def mask(self, example: dict[str, tf.Tensor], size: Any = ()) -> tf.Tensor:
        """Returns the mask of an example, uint8 [h, w]; `size` is that of its picture, where it is known."""
        arguments = [self.label(example), tf.cast(size, tf.int32)]
        read = tf.numpy_function(self._read_or_say, arguments, tf.uint8)
        if self.numbers:
            accepted = "the classes of the run in their order"
            raise invalid(f"{CLASSES} in {self._root!r}", accepted, self.class_names)
        return tf.ensure_shape(read, [None, None])

    def check_readable(self, split: str) -> None:
        """Checks the first masks of a split; others that do not fit are bad records."""
        super().check_readable(split)
        numbers: set[int] = set()
        for path, mask in super().files(split)[:NUM_CHECKED]:
            size: Sequence[int] = ()
            with contextlib.suppress(InputError):  # a bad record
                size = read_image(path).shape[:2]
            numbers.update(np.unique(self._read_mask(mask, size)).tolist())
        if numbers == {0, IGNORED}:
            accepted = f"numbers of classes; {IGNORED} is ignored"
            hint = f"where {IGNORED} is a class, write its number instead, such as 1"
            raise invalid(f"masks of {split!r}", accepted, sorted(numbers), hint)

    def _read_or_say(self, path: bytes, size: np.ndarray) -> np.ndarray:
        """Returns the same as `_read_mask`, and prints once why a mask is a bad record."""
        try:
            return self._read_mask(path, size.tolist())
        except InputError as error:
            _print_once(str(error))
            raise

    def _read_mask(self, path: bytes, size: Sequence[int]) -> np.ndarray:
        """Returns the numbers in a mask; `InputError` where it is none of these classes and this size."""
        where = f"mask {os.fsdecode(path)!r}"
        accepted = "a PNG of numbers, in gray levels or a palette of at most 8 bits"
        try:
            with Image.open(os.fsdecode(path)) as image:
                mask = np.asarray(image)
                found = f"{image.format} {image.mode}"
        except (OSError, ValueError, SyntaxError) as error:
            raise invalid(where, accepted, str(error)) from None
        if found not in KINDS:
            raise invalid(where, accepted, found)
        count = len(self.class_names)
        wrong = mask[(mask >= count) & (mask != IGNORED)]
        if wrong.size:
            accepted = f"from 0 to {count - 1}, as lines of {CLASSES}, or {IGNORED}"
            raise invalid(f"pixels of {where}", accepted, int(wrong[0]))
        if size and mask.shape != tuple(size):
            accepted = f"{tuple(size)}, as of its picture"
            raise invalid(f"height and width of the {where}", accepted, mask.shape)
        return mask.astype(np.uint8)
