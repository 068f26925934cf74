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
from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.training.data.bad_records import Example
from lambdanet.training.data.class_names import IGNORED, read_class_map
from lambdanet.training.data.folder import choose_for_evaluation
from lambdanet.training.data.image_bytes import ORIENTATION
from lambdanet.training.data.image_files import find_pictures, read_image
from lambdanet.training.data.sources import LeftOut, Row, RowSource

COLUMNS = ("file", "mask", "split")
CLASSES = "classes.txt"
LAYOUT = "train/images/*.jpg and train/masks/*.png"
KINDS = ("PNG 1", "PNG L", "PNG P")  # format and mode of Pillow
SCALES = {"L;2": 85, "L;4": 17}  # of gray levels in Pillow, by the samples in the file
NUM_CHECKED = 100  # masks of a split, at even distances

_print_once = functools.cache(functools.partial(print, flush=True))


class MaskSource(RowSource):
    """The pictures of a folder or a table, each with the path of its mask; a `sources.Source`.

    `InputError` where a folder, a picture's mask or classes.txt is missing, and as of `tables.TableSource`.
    """

    label_type = tf.string

    def __init__(self, recipe: Recipe, data_dir: str | None):
        self._recipe = recipe
        self._left_out: list[tuple[str, LeftOut]] = []  # by split
        path = root = os.path.expanduser(data_dir or "")
        if recipe.labels:
            from lambdanet.training.data import tables

            path, root = tables.find_table(recipe, data_dir)
            texts = tables.read_rows(path, COLUMNS)
            for row in texts:
                row["label"] = row.pop("mask")
            rows = tables.rows_of_table(texts, path, root, recipe)
        else:
            rows, self._left_out = rows_of_mask_folders(root, recipe.train_split)
        super().__init__(recipe, path, root, rows)
        self.select(recipe.train_split)
        self.class_names = read_class_map(os.path.join(root, CLASSES))
        if len(self.class_names) > IGNORED:
            raise invalid(
                f"lines of {CLASSES}", f"at most {IGNORED}", len(self.class_names)
            )
        self.check_listed()

    def label_of(self, row: Row) -> str:
        return os.path.join(self._root, row.label)

    def make_evaluation(self, names: Sequence[str]) -> None:
        """Makes it of these pictures, or of one of five, where all folders are of training."""
        recipe = self._recipe
        if recipe.labels or any(
            row.split != recipe.train_split for row in self._listed
        ):
            return
        if not any(os.path.exists(os.path.join(self._root, name)) for name in names):
            names = choose_for_evaluation([row.picture for row in self._listed])
        if not names:
            accepted = f"two or more, of which {recipe.eval_split} gets one"
            raise invalid(f"pictures in {self._root!r}", accepted, len(self._listed))
        self.made_from_training = names
        for number, row in enumerate(self._listed):
            if row.picture in names:
                self._listed[number] = row._replace(split=recipe.eval_split)
        print(
            f"no folder {recipe.eval_split!r} in {self._root!r}: {recipe.eval_split} is {len(names)} of the "
            f"pictures of {recipe.train_split}",
            flush=True,
        )

    def left_out(self, split: str) -> list[LeftOut]:
        return [found for name, found in self._left_out if name == split]

    def label(self, example: Example, size: Any = ()) -> tf.Tensor:
        """Returns the mask of an example, uint8 [h, w]; `size` is that of its picture, where it is known."""
        arguments = [example["label"], tf.cast(size, tf.int32)]
        read = tf.numpy_function(self._read_or_say, arguments, tf.uint8)
        return tf.ensure_shape(read, [None, None])

    def check_readable(self, split: str) -> None:
        """Checks masks all over a split, and prints doubts; others that do not fit are bad records."""
        super().check_readable(split)
        files = self.files(split)
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
            with Image.open(mask) as image:
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
            mask = self._read_mask(os.fsdecode(path), size.tolist())
        except InputError as error:
            _print_once(str(error))
            raise
        order = np.arange(IGNORED + 1, dtype=np.uint8)
        order[: len(self.numbers)] = np.array(self.numbers)
        return order[mask]

    def _read_mask(self, path: str, size: Sequence[int] = ()) -> np.ndarray:
        """Returns the numbers in a mask; `InputError` where it is none of these classes and this size."""
        where = f"mask {path!r}"
        accepted = "a PNG of numbers, in gray levels or a palette of at most 8 bits"
        try:
            with Image.open(path, formats=("PNG",)) as image:
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


def rows_of_mask_folders(
    folder: str, train_split: str
) -> tuple[list[Row], list[tuple[str, LeftOut]]]:
    """Returns a row for each picture, and the files of each split that are no pictures.

    Args:
      folder: the folder that the paths in the rows are relative to.
      train_split: the split of the pictures that are in no folder of a split.
    """
    root = Path(folder)
    rows = []
    left_out = []
    for images in sorted((*root.glob("images"), *root.glob("*/images"))):
        masks = images.parent / "masks"
        if not masks.is_dir():  # as of pictures to predict
            continue
        split = train_split if images.parent == root else images.parent.name
        pictures, others = find_pictures(images)
        left_out.append((split, (str(images), others, len(pictures) + len(others))))
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
            rows.append(Row(file, os.path.relpath(mask, root), split))
        unused = sorted({*chain(*find_pictures(masks))} - owners.keys())
        if unused:
            named = f"{len(unused)} files, such as {unused[0]!r}"
            _print_once(f"left out: {named}, are masks of no picture")
    if not rows:
        accepted = f"the folder of the pictures, with {LAYOUT}"
        raise invalid("data_dir", accepted, folder)
    return rows, left_out
