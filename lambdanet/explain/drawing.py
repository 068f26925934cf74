# SPDX-License-Identifier: Apache-2.0
"""The picture and the page of an explanation: maps over the picture, in red above zero and blue below."""

import base64
import dataclasses
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lambdanet.core.errors import escape_unprintable
from lambdanet.training.serving.drawing import FAINT, INK, as_url, draw_prediction

TEMPLATE = Path(__file__).with_name("page.html")
NEGATIVE = (33, 102, 172)
POSITIVE = (178, 24, 43)
SIDE = 224  # of a map, in pixels
GAP = 16
LINE = 22  # the height of a line of text
LEGEND = "blue negative, red positive: lambda maps are signed, not normalized; each has its own scale"


@dataclasses.dataclass(frozen=True)
class LayerMaps:
    """The maps of one layer for a grid of its outputs.

    Attributes:
      name: the name of the layer.
      grid: the rows and columns of outputs that have maps.
      parts: maps by name, "content" and "position", or "weights" of attention: [h, rows * columns, height,
        width].
      offsets: the position embeddings, a picture for each key [k, r, r], or None for a layer without them.
    """

    name: str
    grid: tuple[int, int]
    parts: dict[str, np.ndarray]
    offsets: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is shown of one picture.

    Attributes:
      title: the name of the file.
      image: what the network sees of it, uint8 [h, w, 3].
      top: names and probabilities of classes, in descending order.
      evidence: Grad-CAM of the first class, [height, width].
      layers: the maps.
    """

    title: str
    image: np.ndarray
    top: Sequence[tuple[str, float]]
    evidence: np.ndarray
    layers: Sequence[LayerMaps]

    @property
    def place(self) -> tuple[float, float]:
        """The place with the most evidence, x and y from 0 to 1."""
        height, width = self.evidence.shape
        row, column = divmod(int(self.evidence.argmax()), width)
        return (column + 0.5) / width, (row + 0.5) / height


def draw_page(explanation: Explanation) -> str:
    """Returns a page in HTML that needs no other file: hovering shows what a position reads."""
    layers = []
    for layer in explanation.layers:
        parts = []
        for name, maps in layer.parts.items():
            scales = np.abs(maps).max(axis=(2, 3))
            steps = np.where(scales == 0, 1, scales)[..., np.newaxis, np.newaxis] / 127
            values = np.round(maps / steps).astype(np.int8)
            parts.append(
                {
                    "name": name,
                    "values": _encoded(values),
                    "scales": _encoded(scales.astype("<f4")),
                }
            )
        heads, _, height, width = maps.shape
        shown = {
            "name": layer.name,
            "rows": layer.grid[0],
            "columns": layer.grid[1],
            "height": height,
            "width": width,
            "heads": heads,
            "parts": parts,
        }
        if layer.offsets is not None:
            keys, height, width = layer.offsets.shape
            shown["offsets"] = {
                "keys": keys,
                "height": height,
                "width": width,
                "scale": float(np.abs(layer.offsets).max()),
                "values": _encoded(
                    np.round(127 * _unit(layer.offsets)).astype(np.int8)
                ),
            }
        layers.append(shown)
    height, width = explanation.evidence.shape
    data = {
        "picture": as_url(Image.fromarray(explanation.image)),
        "classes": [{"name": name, "probability": p} for name, p in explanation.top],
        "place": explanation.place,
        "finest": {"rows": height, "columns": width},
        "evidence": {
            "height": height,
            "width": width,
            "values": _encoded((255 * _unit(explanation.evidence)).astype(np.uint8)),
        },
        "layers": layers,
    }
    title = html.escape(escape_unprintable(explanation.title))
    begin, end = TEMPLATE.read_text(encoding="utf-8").split("@DATA@")
    begin = begin.replace("@TITLE@", title)
    return begin + json.dumps(data).replace("<", "\\u003c") + end


def draw_explanation(explanation: Explanation) -> Image.Image:
    """Draws a picture, its prediction, and what the place with the most evidence reads, a row per layer.

    Maps of a layer are means over its heads; beside them are its position embeddings.
    """
    head = draw_prediction(explanation.image, explanation.title, explanation.top)
    first = ("Grad-CAM of the first class", explanation.evidence, None)
    rows: list[list[Any]] = [[first]]
    place = explanation.place
    for layer in explanation.layers:
        grid_height, grid_width = layer.grid
        cell = int(place[1] * grid_height), int(place[0] * grid_width)
        row = []
        for name, maps in layer.parts.items():
            chosen = maps[:, cell[0] * grid_width + cell[1]].mean(axis=0)
            title = f"{layer.name}: {name}, mean of heads"
            row.append((title, chosen, (cell, layer.grid)))
        rows.append(row)
    step = SIDE + LINE + GAP
    height = head.height + step * len(rows) + 2 * LINE + 2 * GAP
    step_right = SIDE + 5 * GAP
    width = max(head.width, 3 * step_right)
    canvas = Image.new("RGB", (width, height), "white")
    canvas.paste(head, (0, 0))
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(14)
    y = head.height
    for row in rows:
        for number, (title, weights, marked) in enumerate(row):
            x = GAP + number * step_right
            draw.text((x, y), title, INK, font)
            canvas.paste(_over(explanation.image, weights, marked), (x, y + LINE))
        y += step
    blank = np.full([1, 1, 3], 255, np.uint8)
    for number, layer in enumerate(explanation.layers, start=1):
        if layer.offsets is not None:
            corner = (GAP + 2 * step_right, head.height + number * step)
            draw.text(corner, "position embeddings by key", INK, font)
            mosaic = _over(blank, _mosaic(layer.offsets))
            canvas.paste(mosaic, (corner[0], corner[1] + LINE))
    ramp = _over(blank, np.linspace(-1, 1, 65)[np.newaxis])
    canvas.paste(ramp.resize((SIDE, LINE)), (GAP, y))
    draw.text((GAP, y + LINE + 4), LEGEND, FAINT, font)
    return canvas


def _over(image: np.ndarray, weights: np.ndarray, marked: Any = None) -> Image.Image:
    """Draws weights [height, width] over a faded picture, and the cell of a grid."""
    size = (SIDE, SIDE)
    faded = Image.fromarray(image).resize(size)
    faded = Image.blend(faded, Image.new("RGB", size, "white"), 0.7)
    shares = _unit(weights)
    colors = np.where((shares < 0)[..., np.newaxis], NEGATIVE, POSITIVE)
    layer = Image.fromarray(colors.astype(np.uint8)).resize(size, 0)
    opacity = Image.fromarray((255 * np.abs(shares)).astype(np.uint8)).resize(size, 0)
    faded.paste(layer, (0, 0), opacity)
    if marked is not None:
        (row, column), (rows, columns) = marked
        box = (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        corners = [round((SIDE - 1) * part) for part in box]
        ImageDraw.Draw(faded).rectangle(corners, outline=INK, width=2)
    return faded


def _mosaic(pictures: np.ndarray) -> np.ndarray:
    """Returns pictures [k, height, width] side by side in a square of them, with lines of zeros between."""
    side = math.ceil(math.sqrt(len(pictures)))
    padding = [(0, side * side - len(pictures)), (0, 1), (0, 1)]
    cells = np.pad(pictures, padding)
    height, width = cells.shape[1:]
    rows = cells.reshape([side, side, height, width]).transpose(0, 2, 1, 3)
    return rows.reshape([side * height, side * width])


def _unit(weights: np.ndarray) -> np.ndarray:
    """Divides weights by the largest of them, unless all are 0."""
    return weights / (np.abs(weights).max() or 1)


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()
