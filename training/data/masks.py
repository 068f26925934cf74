# SPDX-License-Identifier: Apache-2.0
"""Pictures with masks, of the dataset `folder` with the task `segmentation`.

    PICTURES/classes.txt
    PICTURES/train/images/*.jpg         PICTURES/train/masks/*.png
    PICTURES/validation/images/*.jpg    PICTURES/validation/masks/*.png

A mask is a PNG, TIFF or BMP with the name of its picture, of the same size. Its samples are the numbers of
the lines of classes.txt, from 0, in gray or in a palette, as the file has them: the gray of 1, 2 and 4 bits
is not scaled. 255 is ignored, unless there are two classes, and all masks of all splits have 0 and 255 alone:
then 255 is the second class. Where classes.txt ends each line with a color, masks have these colors instead.
Pictures are turned upright; a mask is turned by its own EXIF orientation alone.

Without the folder `train`, `images` and `masks` are those of PICTURES. Without any other folder, one of five
pictures is held out for evaluation. Or a table has them, with the columns file, mask and split; or the
folders `JPEGImages` and `SegmentationClass` of CVAT, with `labelmap.txt` and lists of splits.
"""

import contextlib
import functools
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from lambdanet.backend.tensors import ceil_div
from lambdanet.configs.recipe import Recipe
from lambdanet.core.errors import InputError, check_different, invalid, one_line
from lambdanet.training.data.bad_records import Example
from lambdanet.training.data.class_names import (
    IGNORED,
    read_colored_names,
    read_names,
)
from lambdanet.training.data.folder import choose_for_evaluation
from lambdanet.training.data.image_bytes import ORIENTATION
from lambdanet.training.data.image_files import find_pictures, read_image
from lambdanet.training.data.sources import LeftOut, Row, RowSource

COLUMNS = ("file", "mask", "split")
CLASSES = "classes.txt"
LABEL_MAP = "labelmap.txt"  # of CVAT
PICTURES = "JPEGImages"
LISTS = "ImageSets/Segmentation/*.txt"
LAYOUT = "train/images/*.jpg and train/masks/*.png"
MASK_FOLDERS = ("masks", "labels", "annotations")
# What follows the name of a picture in that of its mask.
MASK_NAMES = [
    end + ending
    for end in ("", "_mask", "-mask", "_label")
    for ending in (".png", ".tif", ".tiff", ".bmp")
]
ACCEPTED = (
    "one PNG, TIFF or BMP of a page, with numbers in gray or in a palette, or with colors; JPEG is not read, "
    "as its compression changes the numbers"
)
# The mode of an image in Pillow, the arguments of its decoder, which begin with the samples in the file, and
# the number of its pages. Inverted gray, and colors of more than 8 bits, would be changed.
KINDS = re.compile(
    r"(?:1|L|P|LA|RGB|RGBA|I|I;16|I;16B) \W*([1LP](?:;[124])?|I;\w+|[A-Za-z]{2,})(?:;?R)?"
    r"(?![;\w])(?!.*jpeg).*, 1"
)
SCALES = {"L;2": 85, "L;4": 17}  # of gray levels in Pillow, by the samples in the file
GRAYS = [[level, level, level, 255] for level in range(256)]
NUM_CHECKED = 100  # masks of a split, at even distances

_print_once = functools.cache(functools.partial(print, flush=True))


class MaskSource(RowSource):
    """The pictures of a folder or a table, each with the path of its mask; a `sources.Source`.

    Whether 255 is a class is decided once, before the first mask is read, or as it is assigned.

    `InputError` where a folder or classes.txt is missing, and as of `tables.TableSource`.
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
        elif os.path.isdir(os.path.join(root, PICTURES)):
            rows = rows_of_lists(root, recipe)
        else:
            rows, self._left_out = rows_of_mask_folders(root, recipe.train_split)
        super().__init__(recipe, path, root, rows)
        self.select(recipe.train_split)
        files = [os.path.join(root, name) for name in (CLASSES, LABEL_MAP)]
        found = [file for file in files if os.path.exists(file)]
        if not found:
            raise invalid(
                "data_dir",
                f"a folder with {CLASSES}, which has the name of a class in each line",
                root,
            )
        self.class_names, self.colors = read_colored_names(found[0])
        self._numbers_in = functools.cache(self._find_numbers)
        if len(self.class_names) > IGNORED:
            raise invalid(
                f"lines of {CLASSES}", f"at most {IGNORED}", len(self.class_names)
            )
        self.check_listed()

    def label_of(self, row: Row) -> str:
        return os.path.join(self._root, row.label)

    @functools.cached_property
    def white_class(self) -> bool:
        """Whether 255 is the second of two classes: all masks of all splits have 0 and 255 alone."""
        if self.colors or len(self.class_names) != 2:
            return False
        masks = sorted({self.label_of(row) for row in self._listed})
        if self._first_numbers(masks) != {0, IGNORED}:
            return False
        _print_once(
            f"{IGNORED} is the class {self.class_names[1]!r}: all {len(masks)} masks in {self._root!r} have "
            f"0 and {IGNORED} alone"
        )
        return True

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
        """Checks masks all over a split, and prints doubts; others that do not fit are bad records.

        `InputError` where a picture has no mask.
        """
        super().check_readable(split)
        files = self.files(split)
        for picture, mask in files:
            if not os.path.exists(mask):
                raise invalid(
                    f"mask of {picture!r}", f"the file {mask!r}", "none", ACCEPTED
                )
        masks = [mask for _, mask in files]
        checked = files[:: ceil_div(len(files), NUM_CHECKED)]
        no_class = {0, IGNORED}
        if self.white_class:
            no_class = {0}
            for mask in masks:
                if 1 in self._numbers_in(mask):
                    self._read_mask(mask)  # which says so
        numbers: set[int] = set()
        colors = set()
        num_turned = 0
        for path, mask in checked:
            size: Sequence[int] = ()
            with contextlib.suppress(InputError):  # a bad record
                size = read_image(path).shape[:2]
            numbers.update(np.unique(self._read_mask(mask, size)).tolist())
            with Image.open(mask) as image:
                has_own = ORIENTATION in image.getexif()
                palette = [] if self.colors else image.getpalette() or []
            for number in self._numbers_in(mask) if palette else ():
                colors.add((number, *palette[3 * number : 3 * number + 3]))
            # Pillow cannot open all pictures that TensorFlow can.
            with contextlib.suppress(Exception), Image.open(path) as image:
                turn = image.getexif().get(ORIENTATION, 1)
                fits_both = turn in (2, 3, 4) or (turn > 4 and len(set(size)) == 1)
                num_turned += fits_both and not has_own
        if numbers <= no_class:
            numbers |= self._first_numbers(masks)
        if numbers <= no_class:
            accepted = f"numbers of classes; {IGNORED} is ignored, and one above 0 has to be there"
            hint = (
                f"{IGNORED} is a class where classes.txt has two lines, and 0 and {IGNORED} alone are in all "
                f"masks; it has {len(self.class_names)}"
            )
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
        """Returns the classes in a mask; `InputError` where it is none of these classes and this size."""
        mask = self._read_numbers(path)
        if self.white_class:
            if (mask == 1).any():
                accepted = f"0 or {IGNORED}, as in the masks that the run began with"
                raise invalid(f"pixels of mask {path!r}", accepted, 1)
            mask = mask // IGNORED
        if size and mask.shape != tuple(size):
            where = f"height and width of the mask {path!r}"
            raise invalid(where, f"{tuple(size)}, as of its picture", mask.shape)
        return mask

    def _first_numbers(self, masks: Sequence[str]) -> set[int]:
        """Returns the numbers in masks, up to the first one that has others than 0 and 255."""
        found: set[int] = set()
        for mask in masks:
            found |= self._numbers_in(mask)
            if found - {0, IGNORED}:
                break
        return found

    def _find_numbers(self, path: str) -> set[int]:
        """Returns the numbers in a mask; none where it is a bad record."""
        with contextlib.suppress(InputError):
            return set(np.unique(self._read_numbers(path)).tolist())
        return set()

    def _read_numbers(self, path: str) -> np.ndarray:
        """Returns the numbers in a mask, uint8; `InputError` where one is neither a class nor 255."""
        where = f"mask {path!r}"
        try:
            with Image.open(path, formats=("PNG", "TIFF", "BMP")) as image:
                num_pages = getattr(image, "n_frames", 1)
                found = f"{image.mode} {image.tile[0].args}, {num_pages}"
                upright = ImageOps.exif_transpose(image)
        except FileNotFoundError:
            raise invalid(where, ACCEPTED, "none") from None
        # Pillow raises many kinds for damaged files, and one for large ones.
        except Exception as error:
            raise invalid(where, ACCEPTED, one_line(error)) from None
        kind = KINDS.fullmatch(found)
        if not kind or (self.colors and found.startswith("I")):
            raise invalid(where, ACCEPTED, f"{image.format} {found}")
        if self.colors or upright.mode in ("LA", "RGB", "RGBA"):
            mask = self._match_colors(np.array(upright.convert("RGBA")), where)
        else:
            mask = np.asarray(upright) // SCALES.get(kind[1], 1)
        count = len(self.class_names)
        wrong = mask[((mask < 0) | (mask >= count)) & (mask != IGNORED)]
        if wrong.size:
            accepted = f"from 0 to {count - 1}, as lines of {CLASSES}, or {IGNORED}"
            raise invalid(f"pixels of {where}", accepted, int(wrong[0]))
        return mask.astype(np.uint8)

    def _match_colors(self, pixels: np.ndarray, where: str) -> np.ndarray:
        """Returns the numbers of colors; without listed ones, those are the levels of gray.

        Args:
          pixels: red, green, blue and alpha, uint8 [h, w, 4].
          where: what has them, for messages.

        Raises:
          InputError: a color is not listed, or not opaque.
        """
        colors = self.colors or GRAYS
        codes = pixels.view("<u4")[..., 0]
        numbers = np.full(codes.shape, -1, np.int16)
        while numbers.min() < 0:  # once for each color
            row, column = np.unravel_index(numbers.argmin(), numbers.shape)
            color = pixels[row, column].tolist()
            if color not in colors:
                accepted = (
                    f"opaque, and listed in {CLASSES}, or gray where that has no colors"
                )
                hint = ""
                if self.colors:
                    distances = np.square(np.subtract(colors, color)).sum(axis=-1)
                    nearest = int(distances.argmin())
                    name = self.class_names[nearest]
                    hint = f"the nearest is {tuple(colors[nearest][:3])} of {name!r}"
                place = f"row {row}, column {column} of the {where}"
                raise invalid(f"color in {place}", accepted, tuple(color[:3]), hint)
            numbers[codes == codes[row, column]] = colors.index(color)
        return numbers


def rows_of_mask_folders(
    folder: str, train_split: str
) -> tuple[list[Row], list[tuple[str, LeftOut]]]:
    """Returns a row for each picture, and the files of each split that are no pictures.

    A picture without a mask has the path that it may have, which `MaskSource.check_readable` refuses.

    Args:
      folder: the folder that the paths in the rows are relative to.
      train_split: the split of the pictures that are in no folder of a split.
    """
    root = Path(folder)
    rows = []
    left_out = []
    for images in sorted((*root.glob("images"), *root.glob("*/images"))):
        parent = images.parent
        folders = [parent / name for name in MASK_FOLDERS if (parent / name).is_dir()]
        if not folders:  # as of pictures to predict
            continue
        files: set[str] = set()
        for each in folders:
            files.update(*find_pictures(each))
        split = train_split if parent == root else parent.name
        pictures, others = find_pictures(images)
        left_out.append((split, (str(images), others, len(pictures) + len(others))))
        owners: dict[str, str] = {}
        for picture in pictures:
            name = os.path.splitext(os.path.relpath(picture, images))[0]
            paths = [f"{each / name}{end}" for each in folders for end in MASK_NAMES]
            fitting = [path for path in paths if path in files]
            if len(fitting) > 1:
                raise invalid(
                    f"mask of {picture!r}", f"the file {paths[0]!r}", fitting, ACCEPTED
                )
            mask = (fitting or paths)[0]
            owner = owners.setdefault(mask, picture)
            if owner != picture:
                raise invalid(f"mask {mask!r}", f"that of {owner!r} alone", picture)
            file = os.path.relpath(picture, root)
            rows.append(Row(file, os.path.relpath(mask, root), split))
        if unused := sorted(files - owners.keys()):
            named = f"{len(unused)} files, such as {unused[0]!r}"
            _print_once(
                f"left out: {named}, are not PNG, TIFF or BMP masks of a picture"
            )
    if not rows:
        accepted = f"the folder of the pictures, with {LAYOUT}"
        raise invalid("data_dir", accepted, folder)
    return rows, left_out


def rows_of_lists(root: str, recipe: Recipe) -> list[Row]:
    """Returns a row for each picture in the lists of CVAT, one for each split; a single one is of training.

    Args:
      root: the folder that the paths in the rows are relative to.
      recipe: the splits of training and evaluation, which share no picture.
    """
    from lambdanet.training.data import tables

    images = os.path.join(root, PICTURES)
    pictures, _ = find_pictures(images)
    names = [os.path.splitext(os.path.relpath(path, images))[0] for path in pictures]
    check_different(names, f"pictures in {images!r}")
    files = dict(zip(names, pictures, strict=True))
    lists = sorted(Path(root).glob(LISTS))
    texts = []
    for path in lists:
        split = path.stem if len(lists) > 1 else recipe.train_split
        for line in read_names(path):
            name = line.strip(' "')
            if name not in files:
                raise invalid(f"{name!r} in {str(path)!r}", f"in {images!r}", "none")
            file = os.path.relpath(files[name], root)
            mask = f"SegmentationClass/{name}.png"
            texts.append({"file": file, "label": mask, "split": split})
    return tables.rows_of_table(texts, root, root, recipe)
