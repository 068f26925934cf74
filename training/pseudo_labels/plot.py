# SPDX-License-Identifier: Apache-2.0
"""Draws how sure a teacher is, and how many pictures of each class there are."""

import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure

NAMED = 25  # classes whose names fit under their bars
INK, BLUE, LIGHT, RED = "#111827", "#2563eb", "#bfd3fb", "#dc2626"


def picture(manifest: dict[str, Any]) -> bytes:
    """Returns a PNG: the histogram of the confidences, and the counts of the classes, the largest first.

    Args:
      manifest: of `lambdanet pseudo-label`.
    """
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _draw_confidences(left, manifest)
    _draw_classes(right, manifest)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _draw_confidences(axes: Any, manifest: dict[str, Any]) -> None:
    counts, threshold = np.array(manifest["confidences"]["counts"]), manifest["settings"]["min_confidence"]
    edges = np.arange(len(counts)) / len(counts)
    colours = [BLUE if edge + 1 / len(counts) > threshold else LIGHT for edge in edges]
    axes.bar(edges, counts, width=1 / len(counts), align="edge", color=colours)
    axes.axvline(threshold, color=RED, linewidth=1)
    axes.set(title=f"{counts.sum()} pictures, {manifest['below']} below {threshold:g}")
    axes.set(xlabel="confidence of the teacher", ylabel="pictures", xlim=(0, 1))


def _draw_classes(axes: Any, manifest: dict[str, Any]) -> None:
    rows = sorted(manifest["per_class"].items(), key=lambda row: -row[1]["candidates"])
    places = np.arange(len(rows))
    bars = {"left out": ("candidates", LIGHT), "taken": ("taken", BLUE)}
    for label, (field, colour) in bars.items():
        axes.bar(
            places,
            [row[field] for _, row in rows],
            width=1 if len(rows) > NAMED else 0.8,
            color=colour,
            label=label,
        )
    each = manifest["records_of_each_class"]
    axes.axhline(each, color=RED, linewidth=1, label=f"records of each class: {each}")
    if len(rows) <= NAMED:
        axes.set_xticks(places, [name for name, _ in rows], rotation=60, ha="right")
    else:
        axes.set(xlabel="classes")
    axes.set(title="pictures of each class", ylabel="pictures")
    axes.legend(frameon=False)
