# SPDX-License-Identifier: Apache-2.0
"""Pictures of overlapping shapes, and for each object the pixels of it that can be seen."""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("disc", "triangle", "square", "star", "ring")

SIDES = (128, 176)  # of a picture, in pixels
# Radius of an object in pixels, and how often one is of that size: what COCO calls small (an area below
# 32 x 32), medium, and large (above 96 x 96), where nothing hides a part of it.
RADII = (((8, 16), 0.35), ((18, 40), 0.4), ((62, 84), 0.25))
MAX_OBJECTS = 5
MIN_VISIBLE = 0.7  # of an object, or what would hide more of it is put elsewhere
MIN_CONTRAST = 90  # of an object to what lies behind it, of 255, in one of the three colours
CROWD_SIZE, CROWD_RADII = (12, 24), (4, 7)
OVERSAMPLING = 4


@dataclasses.dataclass(frozen=True)
class Thing:
    """An object, or a crowd of them, as it is seen.

    Attributes:
      name: its class, one of `CLASSES`.
      mask: bool [h, w], the pixels in which it is seen: nothing nearer covers them.
      whole: the number of pixels in which it would be seen with nothing in front.
      crowd: whether it is many of one class that are not told apart.
    """

    name: str
    mask: np.ndarray
    whole: int
    crowd: bool = False


def scene(seed: tuple[int, ...], empty: bool = False, crowd: bool = False) -> tuple[np.ndarray, list[Thing]]:
    """Draws a picture.

    Args:
      seed: whole numbers; the same give the same picture.
      empty: leaves it without objects.
      crowd: puts a crowd in the background.

    Returns:
      The picture, uint8 RGB [h, w, 3], and what is to be seen in it, from the back to the front.

    Example:
      >>> image, things = scene((0, 1))
      >>> [(thing.name, int(thing.mask.sum())) for thing in things]
    """
    random = np.random.default_rng(seed)
    height, width = (int(side) for side in random.integers(*SIDES, size=2, endpoint=True))
    picture = _background(random, height, width)
    things: list[Thing] = []
    if crowd:
        name = str(random.choice(CLASSES))
        things = _add(picture, things, name, _crowd(name, random, height, width), random, crowd=True)
    for radius in () if empty else _radii(random):
        name = str(random.choice(CLASSES))
        for _ in range(5):  # places
            coverage = _draw(name, radius, _place(random, radius, height, width), random, height, width)
            if _leaves_enough(things, coverage):
                things = _add(picture, things, name, coverage, random)
                break
    noise = random.normal(0, 3, picture.shape)
    return np.clip(picture + noise, 0, 255).astype(np.uint8), things


def _radii(random: np.random.Generator) -> list[float]:
    """The sizes of the objects, the largest first: it is drawn behind the others."""
    count = int(random.integers(2, MAX_OBJECTS, endpoint=True))
    kinds = random.choice(len(RADII), size=count, p=[frequency for _, frequency in RADII])
    return sorted((float(random.uniform(*RADII[kind][0])) for kind in kinds), reverse=True)


def _background(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A soft pattern of two colours, float [h, w, 3]."""
    coarse = Image.fromarray(random.integers(0, 256, [3, 3], dtype=np.uint8))
    pattern = (
        np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)[..., None] / 255
    )
    first, second = random.uniform(40, 215, [2, 3])
    return (first * pattern + second * (1 - pattern)).astype(np.float32)


def _place(random: np.random.Generator, radius: float, height: int, width: int) -> tuple[float, float]:
    """A centre x, y for an object, at most a fifth of the radius too near to an edge."""
    margin = 0.8 * radius
    x, y = (random.uniform(min(margin, side / 2), max(side - margin, side / 2)) for side in (width, height))
    return float(x), float(y)


def _crowd(name: str, random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Draws many small objects near one another: their coverage, float [h, w] from 0 to 1."""
    coverage = np.zeros([height, width], np.float32)
    center = random.uniform([40, 40], [width - 40, height - 40])
    for _ in range(int(random.integers(*CROWD_SIZE, endpoint=True))):
        x, y = center + random.normal(0, 14, 2)
        radius = float(random.uniform(*CROWD_RADII))
        coverage = np.maximum(coverage, _draw(name, radius, (x, y), random, height, width))
    return coverage


def _draw(
    name: str,
    radius: float,
    center: tuple[float, float],
    random: np.random.Generator,
    height: int,
    width: int,
) -> np.ndarray:
    """Draws one object, turned at random: how much of each pixel it covers, float [h, w] from 0 to 1."""
    left, top = (int(np.floor(c - radius)) for c in center)
    side = int(np.ceil(2 * radius)) + 2
    large = Image.new("L", (side * OVERSAMPLING, side * OVERSAMPLING))
    x, y = ((c - corner) * OVERSAMPLING for c, corner in zip(center, (left, top), strict=True))
    _outline(ImageDraw.Draw(large), name, x, y, radius * OVERSAMPLING, float(random.uniform(0, 2 * np.pi)))
    small = np.asarray(large.resize((side, side), Image.Resampling.BOX), np.float32) / 255
    coverage = np.zeros([height, width], np.float32)
    rows, columns = slice(max(top, 0), min(top + side, height)), slice(max(left, 0), min(left + side, width))
    inner = small[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    coverage[rows, columns] = inner
    return coverage


def _outline(draw: ImageDraw.ImageDraw, name: str, x: float, y: float, radius: float, angle: float) -> None:
    if name in ("disc", "ring"):
        draw.circle((x, y), radius, fill=255)
        if name == "ring":
            draw.circle((x, y), 0.55 * radius, fill=0)
        return
    corners = {"triangle": 3, "square": 4, "star": 10}[name]
    angles = angle + 2 * np.pi * np.arange(corners) / corners
    distances = np.full(corners, radius)
    if name == "star":
        distances[1::2] *= 0.45
    points = zip(x + distances * np.cos(angles), y + distances * np.sin(angles), strict=True)
    draw.polygon([(float(px), float(py)) for px, py in points], fill=255)


def _leaves_enough(things: list[Thing], coverage: np.ndarray) -> bool:
    """Whether enough of every object would still be seen with this one in front, which is seen whole."""
    mask = coverage >= 0.5
    return bool(mask.any()) and all(
        np.count_nonzero(thing.mask & ~mask) >= MIN_VISIBLE * thing.whole for thing in things
    )


def _add(
    picture: np.ndarray,
    things: list[Thing],
    name: str,
    coverage: np.ndarray,
    random: np.random.Generator,
    crowd: bool = False,
) -> list[Thing]:
    """Paints an object over the picture; returns all objects, each without what is now hidden."""
    mask = coverage >= 0.5
    behind = picture[mask].mean(axis=0)
    color = random.uniform(0, 255, 3)
    while np.abs(color - behind).max() < MIN_CONTRAST:
        color = random.uniform(0, 255, 3)
    picture += coverage[..., None] * (color - picture)
    seen = [dataclasses.replace(thing, mask=thing.mask & ~mask) for thing in things]
    return [*seen, Thing(name, mask, int(np.count_nonzero(mask)), crowd)]
