# SPDX-License-Identifier: Apache-2.0
"""Plots the confidences of a teacher and the pictures per class."""

import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure

MAX_NAMES = 25  # class names that fit under the bars
INK, BLUE, LIGHT, RED = "#111827", "#2563eb", "#bfd3fb", "#dc2626"


def draw(manifest: dict[str, Any]) -> bytes:
    """Returns a PNG file with the histogram of the confidences, and the counts per class in descending order.

    Args:
      manifest: the manifest of `lambdanet pseudo-label`.
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
    colors = [BLUE if edge + 1 / len(counts) > threshold else LIGHT for edge in edges]
    axes.bar(edges, counts, width=1 / len(counts), align="edge", color=colors)
    axes.axvline(threshold, color=RED, linewidth=1)
    axes.set(title=f"{counts.sum()} pictures, {manifest['below']} below {threshold:g}")
    axes.set(xlabel="confidence of the teacher", ylabel="pictures", xlim=(0, 1))


def _draw_classes(axes: Any, manifest: dict[str, Any]) -> None:
    rows = sorted(manifest["per_class"].items(), key=lambda row: -row[1]["candidates"])
    positions = np.arange(len(rows))
    bars = {"left out": ("candidates", LIGHT), "taken": ("taken", BLUE)}
    for label, (field, color) in bars.items():
        counts = [row[field] for _, row in rows]
        axes.bar(positions, counts, width=1 if len(rows) > MAX_NAMES else 0.8, color=color, label=label)
    per_class = manifest["records_of_each_class"]
    axes.axhline(per_class, color=RED, linewidth=1, label=f"records per class: {per_class}")
    if len(rows) <= MAX_NAMES:
        axes.set_xticks(positions, [name for name, _ in rows], rotation=60, ha="right")
    else:
        axes.set(xlabel="classes")
    axes.set(title="pictures per class", ylabel="pictures")
    axes.legend(frameon=False)
