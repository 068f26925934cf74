# SPDX-License-Identifier: Apache-2.0
"""Pictures with masks, of the dataset `folder` with the task `segmentation`.

    PICTURES/classes.txt
    PICTURES/train/images/*.jpg         PICTURES/train/masks/*.png
    PICTURES/validation/images/*.jpg    PICTURES/validation/masks/*.png

A mask is a PNG with the name of its picture, of the same size. Its samples are the numbers of the lines of
classes.txt, from 0, in gray or in a palette, as the file has them: the gray of 1, 2 and 4 bits is not scaled.
255 is ignored. Pictures are turned upright; a mask is turned by its own EXIF orientation alone.

Without the folder `train`, `images` and `masks` are those of PICTURES. Without any other folder, one of five
pictures is held out for evaluation. Or a table has them, with the columns file, mask and split.
"""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from lambdanet.backend.tensors import ceil_div
from lambdanet.errors import InputError, invalid, one_line
from lambdanet.training.data.bad_records import Example, Pair
from lambdanet.training.data.class_names import IGNORED, read_class_map
from lambdanet.training.data.folder import held_out
from lambdanet.training.data.image_bytes import ORIENTATION
from lambdanet.training.data.image_files import find_pictures, read_image
from lambdanet.training.data.sources import LeftOut
from lambdanet.training.data.tables import Row, TableSource, read_rows

COLUMNS = ("file", "mask", "split")
CLASSES = "classes.txt"
LAYOUT = "train/images/*.jpg and train/masks/*.png"
KINDS = ("PNG 1", "PNG L", "PNG P")  # format and mode of Pillow
SCALES = {"L;2": 85, "L;4": 17}  # of gray levels in Pillow, by the samples in the file
NUM_CHECKED = 100  # masks of a split, at even distances

_print_once = functools.cache(functools.partial(print, flush=True))


class MaskSource(TableSource):
    """The pictures of a folder or a table, each with the path of its mask; a `sources.Source`.

    `InputError` where a folder, a picture's mask or classes.txt is missing, and as of `TableSource`.
    """

    label_type = tf.string

    def _read_rows(self) -> list[Row]:
        self._left_out: list[Any] = []  # by split, as of `left_out`
        if not self._recipe.labels:
            return self._rows_of_folders()
        rows = read_rows(self._table, COLUMNS)
        for row in rows:
            row["label"] = row.pop("mask")
        return rows

    def _rows_of_folders(self) -> list[Row]:
        root = Path(self._root)
        rows = []
        for images in sorted((*root.glob("images"), *root.glob("*/images"))):
            folder = images.parent
            masks = folder / "masks"
            if not masks.is_dir():  # as of pictures to predict
                continue
            split = self._recipe.train_split if folder == root else folder.name
            pictures, others = find_pictures(images)
            found = (str(images), others, len(pictures) + len(others))
            self._left_out.append((split, found))
            owners: dict[str, str] = {}
            for picture in pictures:
                name = Path(picture).relative_to(images).with_suffix(".png")
                mask = os.path.join(masks, name)
                owner = owners.setdefault(mask, picture)
                if owner != picture:
                    raise invalid(f"mask {mask!r}", f"that of {owner!r} alone", picture)
                if not os.path.isfile(mask):
                    raise invalid(f"mask of {picture!r}", f"the file {mask!r}", "none")
                file = os.path.relpath(picture, root)
                label = os.path.relpath(mask, root)
                rows.append({"file": file, "label": label, "split": split})
            unused = sorted({*chain(*find_pictures(masks))} - owners.keys())
            if unused:
                named = f"{len(unused)} files, such as {unused[0]!r}"
                _print_once(f"left out: {named}, are masks of no picture")
        if not rows:
            accepted = f"the folder of the pictures, with {LAYOUT}"
            raise invalid("data_dir", accepted, self._root)
        return rows

    def _find_classes(self, rows: list[Row]) -> list[str]:
        names = read_class_map(os.path.join(self._root, CLASSES))
        if len(names) > IGNORED:
            raise invalid(f"lines of {CLASSES}", f"at most {IGNORED}", len(names))
        return names

    def _label(self, row: Row) -> bytes:
        return os.fsencode(os.path.join(self._root, row["label"]))

    def hold_out(self, names: Sequence[str]) -> None:
        """Holds out these pictures, or one of five, where all folders are of training."""
        recipe = self._recipe
        if recipe.labels or any(
            row["split"] != recipe.train_split for row in self._rows
        ):
            return
        if not any(os.path.exists(os.path.join(self._root, name)) for name in names):
            names = held_out([row["file"] for row in self._rows])
        if not names:
            accepted = f"two or more, of which {recipe.eval_split} gets one"
            raise invalid(f"pictures in {self._root!r}", accepted, len(self._rows))
        self.held_out = names
        for row in self._rows:
            if row["file"] in names:
                row["split"] = recipe.eval_split
        print(
            f"no folder {recipe.eval_split!r} in {self._root!r}: {recipe.eval_split} is {len(names)} of the "
            f"pictures of {recipe.train_split}",
            flush=True,
        )

    def left_out(self, split: str) -> list[LeftOut]:
        return [found for name, found in self._left_out if name == split]

    def files(self, split: str) -> list[tuple[str, Any]]:
        return [(path, os.fsdecode(mask)) for path, mask in super().files(split)]

    def pair(self, example: Example) -> Pair:
        """Returns the picture of an example, and its mask, which has the same size."""
        pixels = self.image(example).pixels()
        return pixels, self.mask(example, tf.shape(pixels)[:2])

    def mask(self, example: Example, size: Any = ()) -> tf.Tensor:
        """Returns the mask of an example, uint8 [h, w]; `size` is that of its picture, where it is known."""
        arguments = [self.label(example), tf.cast(size, tf.int32)]
        read = tf.numpy_function(self._read_or_say, arguments, tf.uint8)
        return tf.ensure_shape(read, [None, None])

    def check_readable(self, split: str) -> None:
        """Checks masks all over a split, and prints doubts; others that do not fit are bad records."""
        super().check_readable(split)
        files = super().files(split)
        checked = files[:: ceil_div(len(files), NUM_CHECKED)]
        numbers: set[int] = set()
        colors = set()
        num_turned = 0
        for path, mask in checked:
            size: Sequence[int] = ()
            with contextlib.suppress(InputError):  # a bad record
                size = read_image(path).shape[:2]
            found = np.unique(self._read_mask(mask, size)).tolist()
            numbers.update(found)
            with Image.open(os.fsdecode(mask)) as image:
                has_own = ORIENTATION in image.getexif()
                palette = image.getpalette() or []
            for number in found if palette else ():
                colors.add((number, *palette[3 * number : 3 * number + 3]))
            # Pillow cannot open all pictures that TensorFlow can.
            with contextlib.suppress(Exception), Image.open(path) as image:
                turn = image.getexif().get(ORIENTATION, 1)
                fits_both = turn in (2, 3, 4) or (turn > 4 and len(set(size)) == 1)
                num_turned += fits_both and not has_own
        for _, mask in files:
            if numbers - {0, IGNORED}:
                break
            with contextlib.suppress(InputError):
                numbers.update(np.unique(self._read_mask(mask)).tolist())
        if numbers <= {0, IGNORED}:
            accepted = f"numbers of classes; {IGNORED} is ignored, and one above 0 has to be there"
            hint = f"where {IGNORED} is a class, write its number instead, such as 1"
            raise invalid(f"masks of {split!r}", accepted, sorted(numbers), hint)
        where = f"{len(checked)} masks of {split!r} in {self._root!r} that were checked"
        for number, name in enumerate(self.class_names):
            if number not in numbers:
                _print_once(f"no pixel of class {name!r} is in {where}")
        for number, count in Counter(number for number, *_ in colors).items():
            if count > 1:
                _print_once(f"{number} has {count} colors in the palettes of {where}")
        if num_turned:
            _print_once(
                f"{num_turned} of {where} have no EXIF orientation, but their pictures have one: they count "
                "as drawn on the upright pictures"
            )

    def _read_or_say(self, path: bytes, size: np.ndarray) -> np.ndarray:
        """Returns the same as `_read_mask` in the order of a run; prints once why a mask is a bad record."""
        try:
            mask = self._read_mask(path, size.tolist())
        except InputError as error:
            _print_once(str(error))
            raise
        order = np.arange(IGNORED + 1, dtype=np.uint8)
        order[: len(self.numbers)] = np.array(self.numbers)
        return order[mask]

    def _read_mask(self, path: bytes, size: Sequence[int] = ()) -> np.ndarray:
        """Returns the numbers in a mask; `InputError` where it is none of these classes and this size."""
        where = f"mask {os.fsdecode(path)!r}"
        accepted = "a PNG of numbers, in gray levels or a palette of at most 8 bits"
        try:
            with Image.open(os.fsdecode(path), formats=("PNG",)) as image:
                scale = SCALES.get(str(image.tile[0][3]), 1)
                found = f"{image.format} {image.mode}"
                mask = np.asarray(ImageOps.exif_transpose(image)) // scale
        # Pillow raises many kinds for damaged files, and one for large ones.
        except Exception as error:
            raise invalid(where, accepted, one_line(error)) from None
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
