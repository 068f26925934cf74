# SPDX-License-Identifier: Apache-2.0
"""Per-class results of a classifier: a table, and a picture of the confusion matrix."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from sklearn import metrics

from lambdanet.backend.tensors import ceil_div

MAX_CLASSES_WITH_NUMBERS, MAX_CLASSES_WITH_NAMES = 30, 100
MAX_CELLS = 1000  # per side
MAX_PAIRS = 25
INK, FAINT = "#111827", "#6b7280"


def per_class(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row per class.

    Args:
      labels: the class of each image, integers [n].
      predicted: the predicted class of each image, integers [n].
      names: the names of the classes, in the order of the labels.

    Returns:
      Dicts of `class`, `name`, `precision`, `recall`, `f1`, `support` (the number of images of the class),
      `predicted` (the number of images predicted as it), and `mostly_taken_for`, the other class that is
      predicted most often for its images. Divisions by zero are None.
    """
    classes = np.arange(len(names))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        labels, predicted, labels=classes, zero_division=np.nan
    )
    matrix = metrics.confusion_matrix(labels, predicted, labels=classes)
    others = matrix - np.diag(np.diag(matrix))
    return [
        {
            "class": index,
            "name": name,
            "precision": _rounded(precision[index]),
            "recall": _rounded(recall[index]),
            "f1": _rounded(f1[index]),
            "support": int(support[index]),
            "predicted": int(matrix[:, index].sum()),
            "mostly_taken_for": names[int(others[index].argmax())] if others[index].any() else "",
        }
        for index, name in enumerate(names)
    ]


def draw(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str], title: str) -> bytes:
    """Draws the confusion matrix, and lists the pairs of classes that are confused most often.

    The color of a cell is the fraction of the images of a class (row) that are predicted as a class (column).
    Up to 30 classes have counts in the cells, up to 100 have names at the sides; above 1000, neighboring
    classes share a cell. The arguments are those of `per_class` and a title, the result is a PNG file.
    """
    matrix = metrics.confusion_matrix(labels, predicted, labels=np.arange(len(names)))
    figure = Figure(figsize=(18.5, 13), dpi=100)
    axes = figure.add_axes((0.14, 0.12, 10 / 18.5, 10 / 13))  # 1000 x 1000 pixels
    figure.text(0.02, 0.955, title, fontsize=17, color=INK)
    _draw_cells(figure, axes, _merged(matrix), len(names))
    if len(names) <= MAX_CLASSES_WITH_NAMES:
        _name_cells(axes, names)
    if len(names) <= MAX_CLASSES_WITH_NUMBERS:
        _number_cells(axes, matrix)
    _list_pairs(figure, matrix, names)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)


def _merged(matrix: np.ndarray) -> np.ndarray:
    """Sums neighboring classes until a cell is at least a pixel."""
    starts = np.arange(0, len(matrix), ceil_div(len(matrix), MAX_CELLS))
    return np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)


def _shares(matrix: np.ndarray) -> np.ndarray:
    return 100 * matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))


def _draw_cells(figure: Figure, axes: Axes, matrix: np.ndarray, num_classes: int) -> None:
    shares = np.ma.masked_equal(_shares(matrix), 0)
    extent = (-0.5, num_classes - 0.5, num_classes - 0.5, -0.5)
    cells = axes.imshow(
        shares, "viridis_r", norm=LogNorm(0.1, 100, clip=True), interpolation="none", extent=extent
    )
    axes.set_xlabel("predicted class", fontsize=14, color=INK)
    axes.set_ylabel("class", fontsize=14, color=INK)
    bar = figure.colorbar(cells, cax=figure.add_axes((0.14 + 10.2 / 18.5, 0.12, 0.012, 10 / 13)))
    bar.set_ticks([0.1, 1, 10, 100], labels=["0.1 %", "1 %", "10 %", "100 %"])
    bar.set_label("of the images of a class (white: none)", fontsize=12, color=INK)


def _name_cells(axes: Axes, names: Sequence[str]) -> None:
    short = [name if len(name) <= 20 else f"{name[:18]}..." for name in names]
    size = max(5.5, min(14, 420 / len(names)))
    fits = max(map(len, short)) * len(names) < 80
    axes.set_xticks(range(len(names)), short, rotation=0 if fits else 90, fontsize=size)
    axes.set_yticks(range(len(names)), short, fontsize=size)


def _number_cells(axes: Axes, matrix: np.ndarray) -> None:
    shares = _shares(matrix)
    for row, column in zip(*np.nonzero(matrix), strict=True):
        color = "white" if shares[row, column] > 8 else INK
        size = max(7, min(16, 240 / len(matrix)))
        axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=color, fontsize=size)


def _list_pairs(figure: Figure, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Writes the most frequently confused pairs on the right."""
    left, top = 0.785, 0.885
    figure.text(left, top, "Confused most often", fontsize=14, color=INK)
    others = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-others, axis=None, kind="stable")[:MAX_PAIRS]
    for line, place in enumerate(order):
        row, column = divmod(int(place), len(names))
        if not others[row, column]:
            break
        y = top - 0.031 * (line + 1)
        count = f"{others[row, column]} of {matrix[row].sum()}"
        figure.text(left, y, f"{_short(names[row])} as {_short(names[column])}", fontsize=9.5, color=INK)
        figure.text(left, y - 0.0125, count, fontsize=8.5, color=FAINT)


def _short(name: str) -> str:
    return name if len(name) <= 19 else f"{name[:17]}..."
