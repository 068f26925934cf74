# SPDX-License-Identifier: Apache-2.0
"""Pictures after Pathfinder (Linsley et al. 2018), of 32x32 pixels: dashed curves and marks."""

from typing import NamedTuple

import numpy as np

SIDE = 32
DASHES = {"segment": 6, "connected": 4}  # of both curves
DISTRACTORS = 3  # curves with two dashes
STEP = 4.2  # pixels from the beginning of a dash to that of the next
# Standard deviation of the change of the direction from dash to dash, in radians.
BEND = 0.35
MARGIN = 1  # pixels between curves
POINTS = np.linspace(0, 2.4, 8)  # along a dash, in pixels


class Curve(NamedTuple):
    """The pixels of a curve, [n, 2], and those of its ends."""

    pixels: np.ndarray
    ends: tuple[np.ndarray, np.ndarray]


def pictures(number: int, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws pictures as maps of 2x2 pixels in ink and in marks, [number, 16, 16, 8], and answers.

    Args:
      number: the number of pictures.
      kind: "connected": two marks, and whether both are on one curve, which their distance does not tell;
        "segment": a mark, and whether each place on one of the two long curves is on the one with the mark.
      seed: the seed.
    """
    random = np.random.default_rng(seed)
    ink, marks = (np.zeros([number, SIDE, SIDE], np.float32) for _ in range(2))
    connected = random.integers(2, size=number)
    owner = np.full([number, SIDE // 2, SIDE // 2], -1)
    for i in range(number):
        curves = _curves(random, DASHES[kind])
        ends = None
        while kind == "connected" and not (ends := _equally_far(*curves[:2])):
            curves = _curves(random, DASHES[kind])
        for curve in curves:
            ink[i][*curve.pixels.T] = 1
        first, second, *_ = curves
        start, end, other = ends or (first.ends[0],) * 3
        for row, column in (start, end if connected[i] else other):
            marks[i, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = 1
        for answer, curve in ((0, second), (1, first)):
            owner[i][*(curve.pixels // 2).T] = answer
    return _patches(
        np.stack([ink, marks], axis=-1)
    ), connected if kind == "connected" else owner


def _equally_far(
    first: Curve, second: Curve
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Returns both ends of the first curve, and an end of the second as far from the one as the other is.

    Without this, the distance of two marks would tell whether they are connected. None if there is none.
    """
    for start, end in (first.ends, first.ends[::-1]):
        for other in second.ends:
            if abs(np.linalg.norm(start - end) - np.linalg.norm(start - other)) < 0.5:
                return start, end, other
    return None


def _curves(random: np.random.Generator, dashes: int) -> list[Curve]:
    """Draws two long curves and the short ones, which do not touch."""
    while True:
        taken = np.zeros([SIDE, SIDE], bool)
        curves = []
        for length in (dashes, dashes, *[2] * DISTRACTORS):
            for _ in range(50):
                curve = _curve(random, length, taken)
                if curve is not None:
                    break
            else:
                break
            for row, column in curve.pixels:
                taken[
                    max(0, row - MARGIN) : row + MARGIN + 1,
                    max(0, column - MARGIN) : column + MARGIN + 1,
                ] = True
            curves.append(curve)
        if len(curves) == 2 + DISTRACTORS:
            # In any order: the second of the long ones makes way for the first, and is nearer to the border.
            return [*(curves[k] for k in random.permutation(2)), *curves[2:]]


def _curve(random: np.random.Generator, dashes: int, taken: np.ndarray) -> Curve | None:
    """Draws a curve; None if it leaves the picture, touches another one or nearly turns back."""
    directions = random.uniform(0, 2 * np.pi) + np.cumsum(
        random.normal(0, BEND, size=dashes)
    )
    steps = np.stack([np.sin(directions), np.cos(directions)], axis=-1)
    starts = random.uniform(0, SIDE, size=2) + STEP * np.append(
        np.zeros([1, 2]), np.cumsum(steps, 0)[:-1], 0
    )
    # [dashes, n, 2]
    points = starts[:, np.newaxis] + POINTS[:, np.newaxis] * steps[:, np.newaxis]
    pixels = np.floor(points).astype(int)
    flat = pixels.reshape([-1, 2])
    if flat.min() < 0 or flat.max() >= SIDE or taken[*flat.T].any():
        return None
    far = np.linalg.norm(starts[:, np.newaxis] - starts, axis=-1) + STEP * np.eye(
        dashes
    )
    if far.min() < 0.9 * STEP:
        return None
    return Curve(np.unique(flat, axis=0), (pixels[0, 0], pixels[-1, -1]))


def _patches(x: np.ndarray) -> np.ndarray:
    """Moves 2x2 pixels into channels: [n, h, w, c] -> [n, h / 2, w / 2, 4 c]."""
    n, height, width, c = x.shape
    x = x.reshape([n, height // 2, 2, width // 2, 2, c]).transpose([0, 1, 3, 2, 4, 5])
    return x.reshape([n, height // 2, width // 2, 4 * c])
