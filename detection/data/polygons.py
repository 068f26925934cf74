# SPDX-License-Identifier: Apache-2.0
"""Encodes masks in COCO's formats, exact to the pixel: polygons for objects, run lengths for crowds."""

from typing import Any

import numpy as np
from scipy import ndimage

Point = tuple[int, int]


def mask_to_polygons(mask: np.ndarray) -> list[list[int]]:
    """Returns the outlines of a mask as COCO polygons.

    They follow the edges of pixels, so pycocotools decodes them to the same mask. Each connected component is
    one polygon. For a hole, the polygon goes from its first corner to the hole, around it and back: an area
    that a polygon encloses twice is outside.

    Args:
      mask: bool [h, w].

    Returns:
      Per component a flat list x, y, x, y, ... of corners in pixels; an empty list for an empty mask.

    Example:
      >>> mask_to_polygons(np.ones([2, 3], bool))
      [[0, 0, 3, 0, 3, 2, 0, 2]]
    """
    labels, count = ndimage.label(mask)
    return [_polygon(labels == label) for label in range(1, count + 1)]


def _polygon(part: np.ndarray) -> list[int]:
    outer, *holes = sorted(_trace_outlines(part), key=_extent, reverse=True)
    corners = list(outer)
    for hole in holes:
        corners += [outer[0], *hole, hole[0]]
    return [int(number) for corner in corners for number in corner]


def _trace_outlines(mask: np.ndarray) -> list[list[Point]]:
    """Returns the closed outlines of a mask as lists of corners, without points on straight lines."""
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
    """Returns the pixel edges between inside and outside: start -> ends, with the inside on the right."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    following: dict[Point, list[Point]] = {}
    for neighbor, start, end in (
        (padded[:-2, 1:-1], (0, 0), (1, 0)),  # the pixel above is outside: an edge from left to right
        (padded[1:-1, 2:], (1, 0), (1, 1)),
        (padded[2:, 1:-1], (1, 1), (0, 1)),
        (padded[1:-1, :-2], (0, 1), (0, 0)),
    ):
        for y, x in np.argwhere(inside & ~neighbor):
            following.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    return following


def _turns(before: Point, point: Point, after: Point) -> bool:
    return not (before[0] == point[0] == after[0] or before[1] == point[1] == after[1])


def _extent(loop: list[Point]) -> int:
    return max(x for x, _ in loop) - min(x for x, _ in loop)


def mask_to_run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """Returns a mask as uncompressed run lengths, COCO's format for crowds.

    Args:
      mask: bool [h, w].

    Returns:
      `size`, and `counts`: the numbers of pixels outside, inside, outside, ... in column order.

    Example:
      >>> mask_to_run_lengths(np.array([[False, True], [False, True]]))
      {'size': [2, 2], 'counts': [2, 2]}
    """
    pixels = mask.T.ravel()
    changes = np.flatnonzero(np.diff(pixels, prepend=False)).tolist()
    counts = np.diff([0, *changes, pixels.size]).tolist()
    return {"size": list(mask.shape), "counts": counts}
