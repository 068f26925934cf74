# SPDX-License-Identifier: Apache-2.0
"""Masks as tools store them: depths, orientations, palettes, and folders that do not fit."""

import dataclasses
import itertools
import struct
import zlib

import numpy as np
import pytest
from helpers import write_picture
from PIL import Image
from refusals import refused
from training_runs import IN_FOLDERS

from lambdanet.training.data.class_names import Classes
from lambdanet.training.data.dataset import Dataset

RECIPE = dataclasses.replace(
    IN_FOLDERS, task="segmentation", loss="cross_entropy", global_batch_size=1
)
COLORS = np.arange(768).astype(np.uint8) * 7
GRAY, PALETTE = 0, 3
ORIENTATIONS = [None, *range(1, 9)]


def png(samples, depth=8, kind=GRAY, orientation=None, colors=COLORS):
    """Returns a PNG of samples [h, w], by the specification alone."""

    def chunk(name, data):
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    height, width = samples.shape
    bits = samples[..., None] >> np.arange(depth)[::-1] & 1
    rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    contents = b"\x89PNG\r\n\x1a\n"
    size = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    contents += chunk(b"IHDR", size)
    if kind == PALETTE:
        contents += chunk(b"PLTE", colors[: 3 << depth].tobytes())
    if orientation:
        entry = struct.pack(">HHIHHI", 0x112, 3, 1, orientation, 0, 0)
        exif = b"MM\0*" + struct.pack(">IH", 8, 1) + entry
        contents += chunk(b"eXIf", exif)
    contents += chunk(b"IDAT", zlib.compress(np.pad(rows, [(0, 0), (1, 0)]).tobytes()))
    return contents + chunk(b"IEND", b"")


def turned(samples, orientation):
    """Returns the upright image: of each orientation, the sides where its first row and column are."""
    if orientation in (5, 6, 7, 8):
        samples = samples.T
    if orientation in (2, 3, 6, 7):
        samples = samples[:, ::-1]
    if orientation in (3, 4, 7, 8):
        samples = samples[::-1]
    return samples


def write_pair(root, name, mask, picture, split="train"):
    for folder, contents in (("images", picture), ("masks", mask)):
        path = root / split / folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return path


def write_split(root, masks, split="train"):
    """Writes pictures in the gray levels of their masks."""
    for number, mask in enumerate(masks):
        write_pair(root, f"{number:03d}", png(mask), png(mask), split)


def open_masks(root, count=3, **options):
    names = "".join(f"{number}\n" for number in range(count))
    (root / "classes.txt").write_text(names)
    return Dataset.open(RECIPE, str(root), **options)


def blocks(*numbers):
    return np.repeat(numbers, 8).reshape(-1, 8)


@pytest.fixture
def root(tmp_path):
    """Two splits, each of three pictures with all of three classes."""
    for shift, split in enumerate(("train", "validation")):
        masks = [blocks(0, 1, 2, 255, shift, number) for number in range(3)]
        write_split(tmp_path, masks, split)
    return tmp_path


def read_masks(root, split="validation", **options):
    dataset = open_masks(root, eval_split=split, **options)
    return [labels[0] for _, labels in dataset.eval(whole=True).as_numpy_iterator()]


@pytest.mark.parametrize("kind", [GRAY, PALETTE])
def test_mask_is_samples_of_file_in_each_depth_and_orientation(tmp_path, kind):
    """Of the mask, and of the picture: each is turned by its own; sizes need not be those of whole bytes."""
    random = np.random.default_rng(0)
    expected = []
    cases = itertools.product([1, 2, 4, 8], ORIENTATIONS)
    for number, (depth, of_mask) in enumerate(cases):
        of_picture = random.choice(ORIENTATIONS)
        sides = random.integers(3, 12, 2)
        samples = random.integers(0, min(1 << depth, 200), sides)
        upright = turned(samples, of_mask)
        stored = upright if of_picture is None or of_picture < 5 else upright.T
        picture = png(np.zeros_like(stored), orientation=of_picture)
        mask = png(samples, depth, kind, of_mask)
        write_pair(tmp_path, f"{number:03d}", mask, picture, "validation")
        expected.append(upright)
    write_split(tmp_path, [blocks(0, 1)])
    found = read_masks(tmp_path, count=200)
    for one, samples in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, samples)


def test_masks_without_orientation_of_their_pictures_are_counted(root, capsys):
    for of_mask, of_picture in ((None, 3), (1, 3), (3, 3), (3, 1), (None, 1)):
        mask = png(blocks(0, 1, 2), orientation=of_mask)
        picture = png(blocks(0, 1, 2), orientation=of_picture)
        write_pair(root, f"{of_mask} {of_picture}", mask, picture)
    open_masks(root).check(compare=False)
    said = capsys.readouterr().out
    assert said.startswith("1 of 8 masks of 'train'")
    assert "have no EXIF orientation, but their pictures have one" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("others", "last", "message"),
    [
        (0, 255, r"masks of 'train' must be numbers of classes.*, got \[0, 255\]"),
        (0, 0, r"masks of 'train' must be numbers of classes.*, got \[0\]"),
        (255, 255, r"masks of 'train' must be numbers of classes.*, got \[255\]"),
        (0, 3, "pixels of mask '.*14[89].png' must be from 0 to 2, .*, got 3"),
        (0, 1, None),
        (255, 2, None),
    ],
)
def test_masks_behind_empty_ones_are_checked(root, capsys, others, last, message):
    """The first 100 of the names are checked no more than the last ones."""
    masks = [blocks(others)] * 148 + [blocks(last)] * 2
    write_split(root, masks)
    dataset = open_masks(root)
    if message:
        with refused(message):
            dataset.check(compare=False)
        return
    dataset.check(compare=False)
    said = capsys.readouterr().out
    missing = {"0", "1", "2"} - {str(others), str(last)}
    for name in "012":
        assert (f"no pixel of class '{name}'" in said) == (name in missing)


def test_only_mask_with_a_class_is_found(root):
    masks = [blocks(0)] * 204
    masks[101] = blocks(1)  # which is not among those that are checked first
    write_split(root, masks)
    open_masks(root).check(compare=False)


def test_palettes_of_other_orders_are_named(root, capsys):
    """Numbers count; colors of numbers that no pixel has, or of gray masks, do not matter."""
    colors = COLORS.copy()
    colors[3:6] = COLORS[6:9]
    colors[30:] = 0
    for name, one in (("a", COLORS), ("b", colors)):
        mask = png(blocks(0, 1, 2), kind=PALETTE, colors=one)
        write_pair(root, name, mask, png(blocks(1, 2, 0)))
    open_masks(root).check(compare=False)
    said = capsys.readouterr().out
    assert "1 has 2 colors in the palettes of 5 masks of 'train'" in said
    assert said.count("\n") == 1


def test_damaged_masks_end_in_one_line(root, monkeypatch):
    mask = root / "train" / "masks" / "000.png"
    for contents in (b"", b"GIF89a", mask.read_bytes()[:40], mask.read_bytes()[:-20]):
        other = mask.with_name("001.png")
        other.write_bytes(contents)
        with refused("mask '.*001.png' must be a PNG of numbers"):
            open_masks(root).check()
    other.unlink()
    with refused("mask of '.*001.png' must be the file '.*001.png', got 'none'"):
        open_masks(root)
    other.write_bytes(mask.read_bytes())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with refused("mask '.*000.png' must be a PNG of numbers.* exceeds limit"):
        open_masks(root).check()


def test_files_that_are_left_out_are_named(root, capsys):
    images = root / "train" / "images"
    (images / "picture.ppm").write_bytes(b"P5 1 1 255 0")
    with refused("1 of 4 files in '.*train/images' are no pictures.*--max_bad_records"):
        open_masks(root).check()
    (images / "picture.ppm").rename(root / "train" / "masks" / "more.png")
    open_masks(root).check()
    line = f"left out: 1 files, such as '{root}/train/masks/more.png', are masks of no"
    assert line in capsys.readouterr().out
    write_picture(images / "000.jpg", np.zeros([6, 8, 3], np.uint8))
    with refused("mask '.*000.png' must be that of '.*000.jpg' alone, got '.*000.png'"):
        open_masks(root)


def test_single_picture_cannot_be_held_out(tmp_path):
    write_split(tmp_path, [blocks(0, 1)])
    with refused("must be two or more, of which validation gets one, got 1"):
        open_masks(tmp_path)


def test_copies_with_equal_masks_are_not_named(root, capsys):
    contents = png(blocks(1, 2, 0, 1))
    equal = png(blocks(0, 1, 2, 1))
    for name in "ab":
        write_pair(root, name, equal, contents)
    open_masks(root).check()
    assert "pictures have two labels" not in capsys.readouterr().out
    write_pair(root, "c", png(blocks(0, 2, 2)), contents)
    open_masks(root).check()
    assert "3 pictures have two labels or" in capsys.readouterr().out


def test_masks_follow_order_of_a_class_map(root):
    """Also of the classes of a run, which may have more."""
    expected = [np.array([2, 0, 3, *range(3, 256)])[mask] for mask in read_masks(root)]
    classes = Classes("a run", 4, ["1", "3", "0", "2"])
    found = read_masks(root, classes=classes, some_classes=True)
    for one, mask in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, mask)


def test_empty_lines_end_classes(root):
    (root / "classes.txt").write_text("0\n1\n2\n\n\n")
    assert Dataset.open(RECIPE, str(root)).class_names == ["0", "1", "2"]
    (root / "classes.txt").write_text("0\n\n2\n")
    with refused("class 1 of '.*classes.txt' must be a name of one line"):
        Dataset.open(RECIPE, str(root))
