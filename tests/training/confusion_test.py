# SPDX-License-Identifier: Apache-2.0
"""The per-class table against a count by hand, and the picture of the confusion matrix."""

import io

import numpy as np
import pytest
from PIL import Image

from lambdanet.training import confusion

NAMES = ["cat", "dog", "owl", "yak"]
LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
# No owl is predicted as a cat, and there is no yak.
PREDICTED = np.array([0, 0, 1, 2, 1, 1, 2, 1, 1, 2])


def test_per_class_precision_recall_and_support():
    rows = confusion.per_class(LABELS, PREDICTED, NAMES)
    columns = "name", "support", "predicted", "precision", "recall", "mostly_taken_for"
    assert [[row[column] for column in columns] for row in rows] == [
        ["cat", 4, 2, 1.0, 0.5, "dog"],
        ["dog", 2, 5, 0.4, 1.0, ""],
        ["owl", 4, 3, pytest.approx(2 / 3, abs=1e-6), 0.5, "dog"],
        ["yak", 0, 0, None, None, ""],
    ]
    assert [row["class"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["f1"] == pytest.approx(2 / (1 / 1 + 1 / 0.5), abs=1e-6)


def test_emoji_in_name_gives_no_warning():
    """Warnings are errors here; Matplotlib's fonts have no emoji."""
    assert confusion.draw(LABELS, PREDICTED, ["cat \N{CAT FACE}", *NAMES[1:]], "title")


@pytest.mark.parametrize("classes", [2, 60, 2500])
def test_picture_has_cell_per_predicted_class(classes):
    labels = np.arange(classes)
    # Half of all classes away from the diagonal.
    predicted = (labels + classes // 2) % classes
    names = [f"kind {index}" for index in range(classes)]
    picture = Image.open(io.BytesIO(confusion.draw(labels, predicted, names, "title")))
    assert picture.size == (1300, 1300)
    pixels = np.asarray(picture.convert("RGB")).astype(int).sum(-1)
    cells = pixels[131:1131, 195:1195]  # from the top and the left of the axes
    height = 1000 / classes
    for row in (classes // 9, classes // 3, classes - 1 - classes // 9):
        y = int((row + 0.25) * height)
        x = int((predicted[row] + 0.25) * height)
        near = cells[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
        assert near.min() < 300  # dark
        assert cells[y, y] > 700  # light: no image is predicted as its own class
