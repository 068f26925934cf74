# SPDX-License-Identifier: Apache-2.0
"""Masks as tools store them: depths, palettes, orientations, and folders that do not fit."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from picture_table import chunk, exif, png, turned
from PIL import Image
from refusals import refused
from training_runs import IN_FOLDERS, check_said

from lambdanet.training.data.class_names import Classes
from lambdanet.training.data.dataset import Dataset

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
    for found, one in zip(read_masks(open_masks(root, 200)), expected, strict=True):
        np.testing.assert_array_equal(found, one)


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
    for name, of_picture, of_mask in (
        ("c", 3, 0),
        ("d", 3, 1),
        ("e", 3, 3),
        ("f", 1, 0),
    ):
        picture = encode(blocks(*b"lots"), 8, of_picture)
        write_pair(root, name, picture, encode(blocks(0, 1, 0, 1), 8, of_mask))
    picture = encode(blocks(*b"able"), 8, 6)  # upright, it has other sides
    write_pair(root, "g", picture, encode(blocks(0, 1, 0, 1).T))
    write_pair(
        root, "h", encode(blocks(*b"1square1"), 8, 6), encode(blocks(*b"\0\1" * 4))
    )
    (root / "train" / "masks" / "i.png").write_bytes(b"")
    open_masks(root).check()
    patterns = (
        "left out: 1 files, such as '.*/masks/i.png', are masks of no picture",
        "1 has 2 colors in the palettes of 9 masks of 'train' in .* checked",
        "2 of 9 masks of 'train' in .* checked have no EXIF orientation, but their",
        "3 pictures have two labels or are in two splits, such as '.*c.png'",
    )
    lines = capsys.readouterr().out.splitlines()
    for pattern, line in zip(patterns, lines, strict=True):
        assert re.match(pattern, line)


def test_folders_and_files_that_do_not_fit(root, monkeypatch):
    mask = root / "train" / "masks" / "000.png"
    contents = mask.read_bytes()
    other = root / "train" / "images" / "000.ppm"
    other.write_bytes(b"P5 1 1 255 0")
    with refused(
        "1 of 2 files in '.*train/images' are no pictures, such as .*ppm'; --"
    ):
        open_masks(root).check()
    other = other.rename(other.with_suffix(".jpg"))
    with refused("mask '.*000.png' must be that of '.*000.jpg' alone, got '.*000.png'"):
        open_masks(root)
    other.unlink()
    kinds = [(16, 0, 1), (8, 2, 3), (16, 2, 3), (8, 4, 2), (8, 6, 4)]
    others = [png(np.zeros([40, 8, n], int), depth, color) for depth, color, n in kinds]
    for damaged in (b"", b"GIF89a", contents[:40], contents[:-30], *others):
        mask.write_bytes(damaged)
        with refused("mask '.*000.png' must be a PNG of numbers"):
            open_masks(root).check()
    mask.write_bytes(contents)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with refused("mask '.*000.png' must be a PNG of numbers.* exceeds limit"):
        open_masks(root).check()
    (root / "validation").rename(root / "test")
    (root / "test" / "masks").rename(root / "no masks")
    with refused("pictures in .* must be two or more, of which validation gets one"):
        open_masks(root)


def test_masks_follow_the_order_of_a_run(root):
    """Also of one that has more classes."""
    classes = Classes("a run", 4, ["1", "3", "0", "2"])
    dataset = open_masks(root, classes=classes, some_classes=True)
    np.testing.assert_array_equal(*read_masks(dataset), blocks(2, 0, 3, 255, 0))
