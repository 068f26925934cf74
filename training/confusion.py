# SPDX-License-Identifier: Apache-2.0
"""Per-class results of a classifier, and pictures of its confusion matrix and of its confidence."""

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from sklearn import metrics
from sklearn.calibration import CalibrationDisplay

from lambdanet.backend.tensors import ceil_div
from lambdanet.training.calibration import NUM_BINS

MAX_CLASSES_WITH_NUMBERS = 30
MAX_CLASSES_WITH_NAMES = 100
MAX_CELLS = 1000  # per side


def per_class(
    labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Computes the table of results per class.

    Args:
      labels: the class of each image, integers [n].
      predicted: the predicted class of each image, integers [n].
      names: the name of each class.

    Returns:
      A row per class with `class`, `name`, `precision`, `recall`, `f1`, `support` (the number of images of
      the class), `predicted` (the number of images predicted as it), and `mostly_taken_for`, the other class
      that is predicted most often for its images, or "". Divisions by zero are None.
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
            "mostly_taken_for": names[int(others[index].argmax())]
            if others[index].any()
            else "",
        }
        for index, name in enumerate(names)
    ]


def draw(
    labels: np.ndarray, predicted: np.ndarray, names: Sequence[str], title: str
) -> bytes:
    """Draws the confusion matrix.

    The color of a cell is the fraction of the images of a class (row) that are predicted as a class (column).
    Up to 30 classes have it as a number too, and up to 100 have names at the sides; above 1000, neighboring
    classes share a cell.

    Args:
      labels: the class of each image, integers [n].
      predicted: the predicted class of each image, integers [n].
      names: the name of each class.
      title: the title of the picture.

    Returns:
      The bytes of a PNG file.
    """
    step = ceil_div(len(names), MAX_CELLS)
    cells = ceil_div(len(names), step)
    numbers = len(names) <= MAX_CLASSES_WITH_NUMBERS
    figure = Figure(figsize=(13, 13), dpi=100)
    axes = figure.add_axes((0.15, 0.13, 10 / 13, 10 / 13))  # 1000 x 1000 pixels
    metrics.ConfusionMatrixDisplay.from_predictions(
        labels // step,
        predicted // step,
        labels=np.arange(cells),
        normalize="true",
        include_values=numbers,
        values_format=".2f",
        cmap="Blues",
        colorbar=False,
        text_kw={"fontsize": max(6, min(16, 200 / cells))},
        # Rare mistakes are visible, too.
        im_kw={"norm": None if numbers else LogNorm(0.001, 1)},
        ax=axes,
    )
    if len(names) <= MAX_CLASSES_WITH_NAMES:
        places = range(cells)
        texts = [name if len(name) <= 20 else f"{name[:18]}..." for name in names]
    else:
        places = range(0, cells, ceil_div(cells, 10))
        texts = [str(step * place) for place in places]
    size = max(5.5, min(14, 420 / len(places)))
    fits = max(map(len, texts)) * len(texts) < 80
    axes.set_xticks(places, texts, rotation=0 if fits else 90, fontsize=size)
    axes.set_yticks(places, texts, fontsize=size)
    axes.set_xlabel("predicted class", fontsize=14)
    axes.set_ylabel("class", fontsize=14)
    axes.set_title(title, fontsize=11)
    return _png(figure)


def draw_reliability(
    confidences: np.ndarray, is_correct: np.ndarray, title: str
) -> bytes:
    """Draws a reliability diagram: the accuracy of images by confidence, and where the images are.

    Args:
      confidences, is_correct: as in `calibration.expected_calibration_error`, with its bins.
      title: the title of the picture.

    Returns:
      The bytes of a PNG file.
    """
    figure = Figure(figsize=(8, 8))
    axes = figure.add_subplot()
    CalibrationDisplay.from_predictions(
        is_correct, confidences, n_bins=NUM_BINS, ax=axes
    )
    axes.set(xlabel="confidence", ylabel="accuracy")
    axes.set_title(title, fontsize=9)
    axes.legend(loc="upper left")
    counts = axes.twinx()
    counts.hist(confidences, NUM_BINS, range=(0, 1), alpha=0.3)
    counts.set_ylabel("images")
    return _png(figure)


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # An emoji in a class's name.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format="png")
    return file.getvalue()


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
