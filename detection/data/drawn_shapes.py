# SPDX-License-Identifier: Apache-2.0
"""Draws pictures of overlapping shapes."""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("disc", "triangle", "square", "star", "ring")
NUM_CLASSES = len(CLASSES) + 1  # with the background

SIDES = (128, 176)  # of an image, in pixels
# Ranges of the radius in pixels, and their probability: small (an area below 32 x 32), medium and large
# (above 96 x 96) objects of COCO, if nothing covers them.
RADII = (((8, 16), 0.35), ((18, 40), 0.4), ((62, 84), 0.25))
MAX_OBJECTS = 5
MIN_VISIBLE = 0.7  # fraction of an object that the objects in front leave visible
# To the mean color behind an object, in at least one channel of 0 to 255.
MIN_CONTRAST = 90
OVERSAMPLING = 4


@dataclasses.dataclass(frozen=True)
class SceneObject:
    """An object of a scene.

    Attributes:
      name: the class, one of `CLASSES`.
      mask: bool [h, w], the visible pixels.
      area: the number of pixels, hidden ones included.
    """

    name: str
    mask: np.ndarray
    area: int


def draw_scene(
    seed: tuple[int, ...], empty: bool = False
) -> tuple[np.ndarray, list[SceneObject]]:
    """Draws an image.

    Args:
      seed: integers that determine the image.
      empty: whether to draw no objects.

    Returns:
      The image, uint8 RGB [h, w, 3], and its objects, from back to front.
    """
    random = np.random.default_rng(seed)
    height, width = (
        int(side) for side in random.integers(*SIDES, size=2, endpoint=True)
    )
    image = _background(random, height, width)
    objects: list[SceneObject] = []
    for radius in () if empty else _radii(random):
        name = str(random.choice(CLASSES))
        for _ in range(5):  # attempts to place it
            center = _random_center(random, radius, height, width)
            coverage = draw_shape(name, radius, center, random, height, width)
            if _keeps_others_visible(objects, coverage):
                objects = _add_object(image, objects, name, coverage, random)
                break
    noise = random.normal(0, 3, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8), objects


def _radii(random: np.random.Generator) -> list[float]:
    """Draws the radii of the objects, the largest first, which is the one at the back."""
    count = int(random.integers(2, MAX_OBJECTS, endpoint=True))
    kinds = random.choice(
        len(RADII), size=count, p=[frequency for _, frequency in RADII]
    )
    return sorted(
        (float(random.uniform(*RADII[kind][0])) for kind in kinds), reverse=True
    )


def _background(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Returns a soft pattern of two colors, float [h, w, 3]."""
    coarse = Image.fromarray(random.integers(0, 256, [3, 3], dtype=np.uint8))
    smooth = coarse.resize((width, height), Image.Resampling.BICUBIC)
    pattern = np.asarray(smooth, np.float32)[..., None] / 255
    first, second = random.uniform(40, 215, [2, 3])
    return (first * pattern + second * (1 - pattern)).astype(np.float32)


def _random_center(
    random: np.random.Generator, radius: float, height: int, width: int
) -> tuple[float, float]:
    """Returns a center x, y; at most a fifth of the radius extends beyond the edge."""
    margin = 0.8 * radius
    x, y = (
        random.uniform(min(margin, side / 2), max(side - margin, side / 2))
        for side in (width, height)
    )
    return x, y


def draw_shape(
    name: str,
    radius: float,
    center: tuple[float, float],
    random: np.random.Generator,
    height: int,
    width: int,
) -> np.ndarray:
    """Returns the coverage of each pixel by one object at a random angle, float [h, w] from 0 to 1."""
    left, top = (int(np.floor(c - radius)) for c in center)
    side = int(np.ceil(2 * radius)) + 2
    large = Image.new("L", (side * OVERSAMPLING, side * OVERSAMPLING))
    x, y = (
        (c - corner) * OVERSAMPLING
        for c, corner in zip(center, (left, top), strict=True)
    )
    _outline(
        ImageDraw.Draw(large),
        name,
        x,
        y,
        radius * OVERSAMPLING,
        float(random.uniform(0, 2 * np.pi)),
    )
    small = (
        np.asarray(large.resize((side, side), Image.Resampling.BOX), np.float32) / 255
    )
    coverage = np.zeros([height, width], np.float32)
    rows = slice(max(top, 0), min(top + side, height))
    columns = slice(max(left, 0), min(left + side, width))
    inner = small[
        rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
    ]
    coverage[rows, columns] = inner
    return coverage


def _outline(
    draw: ImageDraw.ImageDraw,
    name: str,
    x: float,
    y: float,
    radius: float,
    angle: float,
) -> None:
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
    points = zip(
        x + distances * np.cos(angles), y + distances * np.sin(angles), strict=True
    )
    draw.polygon(list(points), fill=255)


def _keeps_others_visible(objects: list[SceneObject], coverage: np.ndarray) -> bool:
    """Whether every object keeps at least `MIN_VISIBLE` of its area with this one in front."""
    mask = coverage >= 0.5
    return bool(mask.any()) and all(
        np.count_nonzero(item.mask & ~mask) >= MIN_VISIBLE * item.area
        for item in objects
    )


def _add_object(
    image: np.ndarray,
    objects: list[SceneObject],
    name: str,
    coverage: np.ndarray,
    random: np.random.Generator,
) -> list[SceneObject]:
    """Paints an object over the image; returns all objects with the visible part of their masks."""
    mask = coverage >= 0.5
    behind = image[mask].mean(axis=0)
    color = random.uniform(0, 255, 3)
    while np.abs(color - behind).max() < MIN_CONTRAST:
        color = random.uniform(0, 255, 3)
    image += coverage[..., None] * (color - image)
    visible = [dataclasses.replace(item, mask=item.mask & ~mask) for item in objects]
    return [*visible, SceneObject(name, mask, int(np.count_nonzero(mask)))]
