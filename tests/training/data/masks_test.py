# SPDX-License-Identifier: Apache-2.0
"""Masks as tools store them: depths, palettes, orientations, and folders that do not fit."""

import dataclasses
import io
import itertools
import json
import re
from functools import partial

import numpy as np
import pytest
from helpers import assert_equal_arrays, assert_equal_batches, write_picture
from picture_table import chunk, exif, png, turned
from PIL import Image
from refusals import refused
from training_runs import IN_FOLDERS, check_said, open_dataset

from lambdanet.training.data.class_names import Classes
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard
from lambdanet.training.evaluate import open_split
from lambdanet.training.run import start
from lambdanet.training.train import train

RECIPE = dataclasses.replace(
    IN_FOLDERS, task="segmentation", loss="cross_entropy", global_batch_size=1
)
PALETTE = np.arange(768).astype(np.uint8)


def encode(numbers, depth=8, orientation=None, palette=()):
    """Returns a PNG of samples [h, w], by the specification alone."""
    chunks = []
    if len(palette):
        chunks.append(chunk(b"PLTE", bytes(palette[: 3 << depth])))
    if orientation:
        chunks.append(chunk(b"eXIf", exif(orientation)))
    return png(numbers[..., None], depth, 3 if len(palette) else 0, *chunks)


def write_pair(root, name, picture, mask=None, split="train"):
    """Writes two files; without a mask, the picture has the gray levels of its mask."""
    for folder, contents in (("images", picture), ("masks", mask or picture)):
        path = root / split / folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)


def open_masks(root, count=3, **options):
    (root / "classes.txt").write_text("".join(f"{number}\n" for number in range(count)))
    return Dataset.open(RECIPE, str(root), **options)


def read_masks(dataset):
    return [mask[0] for _, mask in dataset.eval(whole=True).as_numpy_iterator()]


def blocks(*numbers):
    return np.repeat(numbers, 8).reshape(-1, 8)


@pytest.fixture
def root(tmp_path):
    for number, split in enumerate(["train", "validation"]):
        mask = encode(blocks(0, 1, 2, 255, number))
        write_pair(tmp_path, "000", mask, split=split)
    return tmp_path


@pytest.mark.parametrize("palette", [(), PALETTE])
def test_mask_has_samples_of_its_file_in_any_depth_and_orientation(root, palette):
    """A picture with an orientation of its own does not turn a mask without one."""
    random = np.random.default_rng(0)
    expected = [blocks(0, 1, 2, 255, 1)]
    for depth, of_mask in itertools.product([1, 2, 4, 8], range(9)):
        samples = random.integers(0, 1 << depth, random.integers(3, 12, 2)) % 200
        upright = turned(samples[..., None], of_mask or 1)
        of_picture = int(random.integers(1, 9))
        stored = upright[..., 0] if of_picture < 5 else upright[..., 0].T
        picture = encode(stored, 8, of_picture)
        mask = encode(samples, depth, of_mask, palette)
        write_pair(root, f"{len(expected):03d}", picture, mask, "validation")
        expected.append(upright[..., 0])
    assert_equal_arrays(read_masks(open_masks(root, 200)), expected)


@pytest.mark.parametrize(
    ("others", "place", "number", "message"),
    [
        (0, 201, 255, r"masks of 'train' must be numbers of .*, got \[0, 255\]"),
        (0, 201, 0, r"masks of 'train' must be numbers of .*, got \[0\]"),
        (255, 201, 255, r"masks of 'train' must be numbers of .*, got \[255\]"),
        (0, 201, 3, "pixels of mask '.*201.png' must be from 0 to 2, .*, got 3"),
        # Not among those that are read first.
        (0, 101, 1, "^no pixel of class '2' is in 68 masks of 'train' in .*\n$"),
    ],
)
def test_masks_behind_empty_ones_count(root, capsys, others, place, number, message):
    for each in range(204):
        value = number if each == place else others
        write_pair(root, f"{each:03d}", encode(blocks(value)))
    assert re.search(message, check_said(open_masks(root), capsys, compare=False))


def test_doubts_are_printed(root, capsys):
    """Each is of some of these pairs, and the others show that it is not of more."""
    swapped = PALETTE.copy()
    swapped[3:6] = 0
    swapped[9:] = 1
    numbers = blocks(0, 1, 2, 0)
    write_pair(root, "a", encode(numbers), encode(numbers, palette=PALETTE))
    write_pair(root, "b", encode(numbers), encode(numbers, palette=swapped))
    for name, of_picture, of_mask in zip(
        "cdef", (3, 3, 3, 1), (0, 1, 3, 0), strict=True
    ):
        picture = encode(blocks(*b"lots"), 8, of_picture)
        write_pair(root, name, picture, encode(blocks(0, 1, 0, 1), 8, of_mask))
    picture = encode(blocks(*b"able"), 8, 6)  # upright, it has other sides
    write_pair(root, "g", picture, encode(blocks(0, 1, 0, 1).T))
    write_pair(
        root, "h", encode(blocks(*b"1square1"), 8, 6), encode(blocks(*b"\0\1" * 4))
    )
    (root / "train/masks/i.png").write_bytes(b"")
    open_masks(root).check()
    patterns = (
        "left out: 1 files, such as '.*/masks/i.png', are not PNG, TIFF or BMP masks of a picture",
        "1 has 2 colors in the palettes of 9 masks of 'train' in .* checked",
        "2 of 9 masks of 'train' in .* checked have no EXIF orientation, but their",
        "3 pictures have two labels or are in two splits, such as '.*c.png'",
    )
    lines = capsys.readouterr().out.splitlines()
    for pattern, line in zip(patterns, lines, strict=True):
        assert re.match(pattern, line)


def test_folders_and_files_that_do_not_fit(root, monkeypatch):
    with refused("data_dir must be a folder with classes.txt, which has the name of"):
        open_dataset(RECIPE, root).check()
    mask = root / "train/masks/000.png"
    contents = mask.read_bytes()
    other = root / "train/images/000.ppm"
    other.write_bytes(b"P5 1 1 255 0")
    with refused(
        "1 of 2 files in '.*train/images' are no pictures, such as .*ppm'; --"
    ):
        open_masks(root).check()
    other = other.rename(other.with_suffix(".jpg"))
    with refused("mask '.*000.png' must be that of '.*000.jpg' alone, got '.*000.png'"):
        open_masks(root)
    other.unlink()
    kinds = [(2, 3), (4, 2), (6, 4)]
    others = [png(np.zeros([40, 8, n], int), 16, color) for color, n in kinds]
    for damaged in (b"", b"GIF89a", contents[:40], contents[:-30], *others):
        mask.write_bytes(damaged)
        with refused("mask '.*000.png' must be one PNG, TIFF or BMP"):
            open_masks(root).check()
    mask.write_bytes(encode(blocks(0, 1, 2, 255)))
    with refused(r"mask '.*000.png' must be \(5, 8\), as of its picture, got \(4, 8"):
        open_masks(root).check()
    mask.write_bytes(contents)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with refused("mask '.*000.png' must be one PNG, .* exceeds limit"):
        open_masks(root).check()
    (root / "validation").rename(root / "test")
    (root / "test/masks").rename(root / "no masks")
    with refused("pictures in .* must be two or more, of which validation gets one"):
        open_masks(root)


def test_masks_follow_the_order_of_a_run(root):
    """Also of one that has more classes."""
    classes = Classes("a run", 4, ["1", "3", "0", "2"])
    dataset = open_masks(root, classes=classes, some_classes=True)
    assert_equal_arrays(read_masks(dataset), [blocks(2, 0, 3, 255, 0)])


NUMBERS = blocks(0, 3, 255, 1, 2)
COLORS = np.array([[9, 0, 0], [0, 0, 9], [0, 9, 0], [255, 255, 255]], np.uint8)
COLORED = COLORS[NUMBERS % 252]  # 255 is the last class
RGB = np.stack([NUMBERS] * 3, -1).astype(np.uint8)
OPAQUE = np.concatenate([RGB, 0 * RGB[..., :1] + 255], -1)
INDEXED = Image.fromarray(np.uint8(7 - NUMBERS % 252))
INDEXED.putpalette([*bytes(12), *COLORS[::-1].ravel()])


def save_mask(root, image, end="png", **options):
    """Replaces the masks of the validation by one; returns its path."""
    for file in (root / "validation/masks").iterdir():
        file.unlink()
    path = root / f"validation/masks/000{end}"
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    image.save(path, **options)
    return path


@pytest.mark.parametrize("end", [".png", "_mask.tif", "-mask.tiff", "_label.bmp"])
def test_masks_of_tools_are_arrays_of_numbers(root, end):
    formats = [np.uint8(NUMBERS), RGB]
    if "bmp" not in end:
        formats += [OPAQUE, NUMBERS.astype(np.uint16), OPAQUE[..., 2:]]
    if "tif" in end:
        formats.append(NUMBERS.astype(np.int32))
    for image in formats:
        save_mask(root, image, end)
        assert_equal_arrays(read_masks(open_masks(root, 4)), [NUMBERS])
    save_mask(root, INDEXED, end)
    assert_equal_arrays(read_masks(open_masks(root, 8)), [7 - NUMBERS % 252])


def write_colors(root, *ends):
    lines = [f"{name}{end}" for name, end in zip("abcd", ends, strict=True)]
    (root / "classes.txt").write_text("\n".join(lines))
    return open_dataset(RECIPE, root)


def test_colors_of_classes_are_their_numbers(root):
    """Also of a palette, and of gray; the order is that of the file, not of the colors."""
    ends = [" {} {} {}".format(*color) for color in COLORS]
    gray = np.uint8(NUMBERS // 255 * 255)
    for image, expected in (
        (COLORED, NUMBERS % 252),
        (INDEXED, NUMBERS % 252),
        (gray, gray // 255 * 3),
    ):
        save_mask(root, image, ".png")
        changed = ends if image is not gray else [" 0 0 0", *ends[1:]]
        assert_equal_arrays(read_masks(write_colors(root, *changed)), [expected])
    other = COLORED.copy()
    other[3:, 5] = 0, 7, 1
    path = save_mask(root, other, ".png")
    message = (
        r"color in row 3, column 5 of the mask '.*000.png' must .*, got \(0, 7, 1\)"
    )
    with refused(message + r"; the nearest is \(0, 9, 0\) of 'c'"):
        write_colors(root, *ends).check()
    with refused("color in row 0, column 0 of .* gray where that has no colors, got"):
        open_masks(root).check()
    write_picture(path, OPAQUE // 2)
    with refused(r"row 0, column 0 .* must be opaque, .*, got \(0, 0, 0\)"):
        open_masks(root).check()
    for wrong, said in (("", "None"), (ends[0], r"\[9, 0, 0, 255"), (" 256 0 0", "N")):
        with refused(f"line 2 of '.*classes.txt' must be a class with .*, got {said}"):
            write_colors(root, ends[0], wrong, *ends[2:])


def test_masks_that_would_be_changed_are_refused(root):
    bits = NUMBERS.astype(np.uint16)
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, "JPEG")
    lossy = Image.open(file)
    gray = Image.fromarray(RGB[..., 0])
    for image, options, message in (
        (lossy, {"format": "JPEG"}, "JPEG is not read, as its compression changes"),
        (gray, {"format": "TIFF", "compression": "jpeg"}, "TIFF L .*jpeg"),
        (gray, {"format": "TIFF", "tiffinfo": {262: 0}}, "TIFF L .*L;I"),
        (gray, {"format": "TIFF", "save_all": True, "append_images": [gray]}, "1., 2"),
        (np.float32(NUMBERS), {"format": "TIFF"}, "TIFF F"),
        (bits + 256, {}, "pixels of mask '.*000.png' must be from 0 to 3, .*, got 256"),
    ):
        save_mask(root, image, ".png", **options)
        with refused(message):
            open_masks(root, 4).check()
    save_mask(root, bits, ".png")
    with refused("must be one PNG, .*, got 'PNG I;16"):
        write_colors(root, *[" {} {} {}".format(*color) for color in COLORS]).check()


def test_masks_that_fit_no_picture_alone_are_refused(root):
    folder = root / "validation"
    (folder / "masks").rename(folder / "annotations")
    assert len(read_masks(open_masks(root))) == 1
    other = folder / "labels/000_mask.tif"
    write_picture(other, NUMBERS)
    with refused("mask of '.*000.png' must be .*, got .*labels/000_mask.tif', .*ann"):
        open_masks(root)
    (folder / "annotations/000.png").rename(folder / "annotations/000.jpg")
    other.unlink()
    message = "mask of '.*000.png' must be the file '.*/000.png', got 'none'; .* JPEG"
    with refused(f"{message} is not read"):
        open_masks(root).check()


def write_white(root, *splits):
    for split, levels in splits:
        for number, level in enumerate(levels):
            write_pair(root, f"{number:03d}", encode(blocks(0, level)), split=split)
    return open_masks(root, 2)


def test_white_is_second_class_of_whole_run(tmp_path, capsys):
    """A split may be black; one other number anywhere, and 255 is ignored everywhere."""
    white = ("validation", [0] * 151 + [255]), ("train", [255])
    write_white(tmp_path, ("test", [0]), *white)
    assert not open_masks(tmp_path, 3).source.white_class
    dataset = open_masks(tmp_path, 2)
    said = check_said(dataset, capsys)
    assert said.count("255 is the class '1': all 154 masks in") == 1
    assert dataset.source.white_class
    np.testing.assert_array_equal(read_masks(dataset)[-1], blocks(0, 1))
    record = start.describe(dataset, start.DataRecord(0, {}))
    run = tmp_path / "run"
    run.mkdir()
    (run / "data.json").write_text('{"steps_per_epoch": 1, "splits": {}}')
    assert not open_split(run, RECIPE, str(tmp_path)).source.white_class
    (run / "data.json").write_text(json.dumps(record._asdict()))
    write_pair(tmp_path, "000", encode(blocks(0, 1, 255)), split="test")
    opened = open_split(run, RECIPE, str(tmp_path))
    np.testing.assert_array_equal(read_masks(opened)[-1], blocks(0, 1))
    others = read_masks(open_masks(tmp_path, 2))
    np.testing.assert_array_equal(others[-1], blocks(0, 255))
    write_white(tmp_path, ("validation", [0] * 101 + [1]))
    message = "pixels of mask '.*101.png' must be 0 or 255, as in the masks .*, got 1"
    with refused(message):
        opened.source.check_readable("validation")
    with refused(message):
        train(RECIPE, run, str(tmp_path))


def test_folders_of_cvat_are_read_as_they_are(tmp_path, capsys):
    (tmp_path / "labelmap.txt").write_text(
        "# label:color_rgb:parts:actions\nsky:9,0,0::\nb c:0,0,9:x,y:z\nd:0,9,0::\n"
        "e:255,255,255::\n"
    )
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    for folder in ("JPEGImages", "SegmentationClass"):
        for name in ("1", "p/2 2", "3"):
            colored = COLORED if name == "1" else COLORED[::-1]
            write_picture(tmp_path / folder / f"{name}.png", colored)
    write_picture(tmp_path / "JPEGImages/1.png", RGB)
    (lists / "default.txt").write_text('"p/2 2"\n3\n')
    open_again = partial(open_dataset, RECIPE, tmp_path)
    dataset = open_again()
    assert dataset.class_names == ["sky", "b c", "d", "e"]
    assert [dataset.num_examples(split) for split in ("train", "validation")] == [1, 1]
    (lists / "default.txt").rename(lists / "train.txt")
    (lists / "validation.txt").write_text("1\n")
    assert_equal_arrays(read_masks(open_again()), [NUMBERS % 252])
    (tmp_path / "classes.txt").write_text("sky 9 0 0\nsky 0 9 0\n")
    with refused("classes.txt' must be different names"):
        open_again()
    (tmp_path / "classes.txt").write_text("sky 9 0 0\nother 0 9 0\n")
    assert open_again().class_names == ["sky", "other"]
    (tmp_path / "classes.txt").unlink()
    (lists / "validation.txt").write_text("1\n3\n")
    with refused("must have a file for training or evaluation alone"):
        open_again()
    (lists / "validation.txt").write_text("4\n")
    with refused("'4' in '.*validation.txt' must be in '.*JPEGImages', got 'none'"):
        open_again()
    write_picture(tmp_path / "JPEGImages/3.jpg", RGB)
    with refused("pictures in '.*JPEGImages' must be different names"):
        open_again()
    (tmp_path / "JPEGImages/3.jpg").unlink()
    (tmp_path / "labelmap.txt").write_text("a:::\nb:::\n")
    (lists / "validation.txt").unlink()
    with refused("line 1 of '.*labelmap.txt' must be a class with a color"):
        open_again()


@pytest.mark.parametrize(
    ("shard", "epochs"), [(SINGLE_MACHINE, 21), (Shard(1, 2, 2), 26)]
)
def test_windows_per_image_are_those_of_more_epochs(root, shard, epochs):
    """Machines have three and two of five pictures; step 19 is within an epoch and one of these."""
    open_masks(root, 5)
    for number in range(4):
        write_pair(root, number, encode(blocks(*[0] * 30, 1, 1, number)))
    one = open_dataset(
        RECIPE, root, global_batch_size=shard.count, foreground_share=1.0, epochs=epochs
    )
    recipe = dataclasses.replace(one.recipe, windows_per_image=7, epochs=3)
    dataset = dataclasses.replace(one, recipe=recipe)
    assert dataset.steps_per_epoch == 35 // shard.count
    batches = list(one.train(shard=shard))
    assert all(np.any(mask == 1) for _, mask in batches)
    assert_equal_batches(dataset.train(shard=shard), batches)
    assert_equal_batches(dataset.train(19, shard), batches[19:])
