# SPDX-License-Identifier: Apache-2.0
"""Selects the same number of pictures of each class (Xie et al. 2020, section 3.1), and plots the selection.

Candidates are compared by keys of 64 bits: the smaller one has the higher confidence or, where they are
equal, the first name. No worker holds all candidates of a class: it keeps the keys of those in its parts that
can still be among the first, and the first of these are the selection.
"""

import io
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

MAX_NAMES = 25  # class names that fit under the bars
INK = "#111827"
BLUE = "#2563eb"
LIGHT = "#bfd3fb"
RED = "#dc2626"

RANK_BITS = 33  # of a key; the rest is for the bits of a float32 from 0 to 2


class Selection(NamedTuple):
    """The selected candidates of a class."""

    last_key: int  # of the selected candidates; none has a larger key
    copies: int  # the number of records of each
    more: np.ndarray  # the keys of those with one more, sorted, uint64
    taken: int  # the number of selected candidates


def candidate_keys(confidences: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Returns the keys of candidates, uint64 [n]: the first is the most confident.

    Args:
      confidences: the probabilities of their classes, float32 [n].
      ranks: their places among all pictures by name, int64 [n].

    Example:
      >>> np.argsort(candidate_keys(np.array([0.5, 0.9, 0.9], np.float32), np.array([0, 2, 1]))).tolist()
      [2, 1, 0]
    """
    bits = np.asarray(confidences, np.float32).view(np.uint32).astype(np.uint64)
    return ((np.uint64(1 << 30) - bits) << np.uint64(RANK_BITS)) | np.asarray(
        ranks, np.uint64
    )


def keep_first(
    labels: np.ndarray, keys: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels and keys of the first `count` candidates of each class, sorted by both."""
    order = np.lexsort((keys, labels))
    labels, keys = labels[order], keys[order]
    kept = np.arange(len(labels)) - np.searchsorted(labels, labels) < count
    return labels[kept], keys[kept]


def select(keys: np.ndarray, label: int, per_class: int, seed: int) -> Selection:
    """Returns the selection of a class, with copies if it has too few candidates.

    Args:
      keys: the first `per_class` keys of the class, sorted, uint64 [n].
      label: the class.
      per_class: the number of records.
      seed: the random seed of the copies; the numbers of copies differ by one at most.
    """
    more = np.random.default_rng([seed, label]).permutation(keys)[
        : per_class % len(keys)
    ]
    return Selection(int(keys[-1]), per_class // len(keys), np.sort(more), len(keys))


def count_copies(
    keys: np.ndarray, labels: np.ndarray, selections: dict[int, Selection]
) -> np.ndarray:
    """Returns the number of records of each candidate of any class, int64 [n]; 0 if it is not selected."""
    copies = np.zeros(len(keys), np.int64)
    for label in np.unique(labels).tolist():
        selection, members = selections[label], labels == label
        number = selection.copies + np.isin(keys[members], selection.more)
        copies[members] = np.where(
            keys[members] <= np.uint64(selection.last_key), number, 0
        )
    return copies


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
    counts, threshold = (
        np.array(manifest["confidences"]["counts"]),
        manifest["settings"]["min_confidence"],
    )
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
        axes.bar(
            positions,
            counts,
            width=1 if len(rows) > MAX_NAMES else 0.8,
            color=color,
            label=label,
        )
    per_class = manifest["records_of_each_class"]
    axes.axhline(
        per_class, color=RED, linewidth=1, label=f"records per class: {per_class}"
    )
    if len(rows) <= MAX_NAMES:
        axes.set_xticks(positions, [name for name, _ in rows], rotation=60, ha="right")
    else:
        axes.set(xlabel="classes")
    axes.set(title="pictures per class", ylabel="pictures")
    axes.legend(frameon=False)
