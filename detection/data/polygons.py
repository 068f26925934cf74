# SPDX-License-Identifier: Apache-2.0
"""Masks as COCO writes them: polygons for single objects, run lengths for crowds; both exact to the pixel."""

from typing import Any

import numpy as np
from scipy import ndimage

Point = tuple[int, int]


def polygons(mask: np.ndarray) -> list[list[int]]:
    """Returns the outlines of a mask as COCO polygons.

    They run along the edges of pixels, so that pycocotools turns them into the very same mask. Each connected
    part is one polygon. A hole is cut out of it by going to it from the first corner, around it, and back:
    what a polygon goes around twice lies outside.

    Args:
      mask: bool [h, w].

    Returns:
      For each part a flat list x, y, x, y, ... of corners in pixels; none where the mask is empty.

    Example:
      >>> polygons(np.ones([2, 3], bool))
      [[0, 0, 3, 0, 3, 2, 0, 2]]
    """
    labels, count = ndimage.label(mask)
    return [_polygon(labels == label) for label in range(1, count + 1)]


def _polygon(part: np.ndarray) -> list[int]:
    outer, *holes = sorted(_loops(part), key=_extent, reverse=True)
    corners = list(outer)
    for hole in holes:
        corners += [outer[0], *hole, hole[0]]
    return [int(number) for corner in corners for number in corner]


def _loops(mask: np.ndarray) -> list[list[Point]]:
    """Returns the closed lines between the pixels inside and outside, without corners on straight lines."""
    following = _edges(mask)
    loops = []
    while following:
        start = point = next(iter(following))
        loop = []
        while True:
            loop.append(point)
            ends = following[point]
            reached = ends.pop()
            if not ends:
                del following[point]
            point = reached
            if point == start:
                break
        loops.append([p for i, p in enumerate(loop) if _turns(loop[i - 1], p, loop[(i + 1) % len(loop)])])
    return loops


def _edges(mask: np.ndarray) -> dict[Point, list[Point]]:
    """Returns the sides of pixels between inside and outside, from end to end, the inside on the right."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    following: dict[Point, list[Point]] = {}
    for neighbour, start, end in (
        (padded[:-2, 1:-1], (0, 0), (1, 0)),  # the pixel above is outside: its side goes from left to right
        (padded[1:-1, 2:], (1, 0), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (0, 1)),
        (padded[1:-1, :-2], (0, 1), (0, 0)),
    ):
        for y, x in np.argwhere(inside & ~neighbour):
            following.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    return following


def _turns(before: Point, point: Point, after: Point) -> bool:
    return not (before[0] == point[0] == after[0] or before[1] == point[1] == after[1])


def _extent(loop: list[Point]) -> int:
    return max(x for x, _ in loop) - min(x for x, _ in loop)


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Returns a mask as the uncompressed run lengths that COCO has for crowds.

    Args:
      mask: bool [h, w].

    Returns:
      `size`, and `counts`: how many pixels lie outside, then inside, and so on, down the columns.

    Example:
      >>> run_lengths(np.array([[False, True], [False, True]]))
      {'size': [2, 2], 'counts': [2, 2]}
    """
    pixels = mask.T.ravel()
    changes = np.flatnonzero(np.diff(pixels, prepend=False)).tolist()
    counts = np.diff([0, *changes, pixels.size]).tolist()
    return {"size": list(mask.shape), "counts": counts}
