# SPDX-License-Identifier: Apache-2.0
"""Selects the same number of pictures per class (Xie et al. 2020, section 3.1), and plots the selection."""

import dataclasses
import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure

MAX_NAMES = 25  # class names that fit under the bars
INK, BLUE, LIGHT, RED = "#111827", "#2563eb", "#bfd3fb", "#dc2626"


@dataclasses.dataclass(frozen=True)
class Selection:
    """The selected candidates."""

    copies: np.ndarray  # the number of records of each candidate, 0 if not selected, int64 [candidates]
    candidates: np.ndarray  # the number per class, int64 [num_classes]
    taken: np.ndarray  # the number of selected candidates per class, int64 [num_classes]
    per_class: int  # the number of records of each class that has candidates


def balance(
    labels: np.ndarray, confidences: np.ndarray, num_classes: int, per_class: int | None, seed: int
) -> Selection:
    """Selects the most confident pictures of each class, with copies if a class has too few.

    Args:
      labels: the classes of the candidates, [n].
      confidences: the probabilities of these classes, [n]; the first of equal candidates is preferred.
      num_classes: the number of classes.
      per_class: the number of records per class; default: the mean over classes that have candidates, which
        keeps the total.
      seed: the random seed of the copies; the numbers of copies within a class differ by one at most.

    Example:
      >>> balance(np.array([0, 0, 0, 1]), np.array([0.9, 0.5, 0.7, 0.8]), 2, 2, seed=0).copies
      array([1, 0, 1, 2])
    """
    candidates = np.bincount(labels, minlength=num_classes)
    if per_class is None:
        per_class = max(1, round(len(labels) / max(1, int(np.count_nonzero(candidates)))))
    copies = np.zeros(len(labels), np.int64)
    order = np.lexsort((np.arange(len(labels)), -confidences, labels))
    ends = np.cumsum(candidates)
    for label, end in enumerate(ends):
        members = order[end - candidates[label] : end]
        if len(members) >= per_class:
            copies[members[:per_class]] = 1
        elif len(members):
            copies[members] = per_class // len(members)
            more = np.random.default_rng([seed, label]).permutation(members)[: per_class % len(members)]
            copies[more] += 1
    taken = np.bincount(labels[copies > 0], minlength=num_classes)
    return Selection(copies, candidates, taken, per_class)


def draw_selection(manifest: dict[str, Any]) -> bytes:
    """Returns a PNG file of a manifest: a histogram of the confidences, and the counts per class, sorted."""
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
