# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.selection`: the cost of selecting the same number of pictures per class."""

import os
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks import program
from benchmarks.memory import largest_resident_mb
from benchmarks.turns import results
from lambdanet import command_line, text_table
from lambdanet.errors import check_counts, invalid
from lambdanet.training.inference import pipeline
from lambdanet.training.inference.classifier import SharedClassifier
from lambdanet.training.inference.inputs import FilePart
from lambdanet.training.inference.progress import BINS, Progress
from lambdanet.training.pseudo_labels.steps import SelectLabels

NUM_CLASSES = 1000
PART_SIZE = 8192


def benchmark_selection(
    predictions: list[str] | None = None, per_class: int = 1000
) -> list[dict[str, str]]:
    """Measures the selection from synthetic predictions of 1,000 classes, without pictures.

    Args:
      predictions: their numbers; default: 1, 2, 4, 8 and 16 million.
      per_class: the number of records per class.

    Returns:
      The rows of the table: seconds, and the largest resident set of the process in MB.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> rows = benchmark_selection(["1000000"])
    """
    check_counts(per_class=per_class)
    texts = predictions or [f"{number}000000" for number in (1, 2, 4, 8, 16)]
    if not all(text.isdecimal() and int(text) > 0 for text in texts):
        raise invalid("predictions", "positive integers", texts)
    results.announce("float32")
    rows = []
    for text in texts:
        with tempfile.TemporaryDirectory() as folder:
            parts = _write(folder, int(text))
            rows.append({"predictions": text} | _measure(folder, parts, per_class))
    print(
        text_table.render(list(rows[0]), [list(row.values()) for row in rows]), end=""
    )
    return rows


def _write(folder: str, count: int) -> list[FilePart]:
    """Writes the predictions of a run, of which some classes have few."""
    random = np.random.default_rng(0)
    progress = Progress(folder, {})
    parts = []
    for number, first in enumerate(range(0, count, PART_SIZE)):
        size = min(PART_SIZE, count - first)
        predictions = {
            "places": np.arange(size),
            "ranks": np.arange(first, first + size),
            "labels": (NUM_CLASSES * random.random(size) ** 2).astype(np.int64),
            "confidences": random.random(size, np.float32),
            "histogram": np.zeros(BINS, np.int64),
            "unreadable": np.array([], np.str_),
        }
        progress.save(number, predictions)
        parts.append(FilePart(number, size, folder, [], []))
    return parts


def _measure(folder: str, parts: list[FilePart], per_class: int) -> dict[str, str]:
    progress = Progress(folder, {})
    select = SelectLabels(progress, NUM_CLASSES, 0.0, per_class, seed=0)
    task = pipeline.Task(SharedClassifier(""), 1, 0, progress)  # which is not loaded
    job = pipeline.Job(parts, task, select)
    ended = threading.Event()
    peak = [0.0]

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], largest_resident_mb(os.getpid()))

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.monotonic()
    try:
        job.run(job.pipeline())
    finally:
        ended.set()
        thread.join()
    return {"s": f"{time.monotonic() - begin:.1f}", "MB": f"{peak[0]:.0f}"}


COMMAND = program("benchmarks.selection", benchmark_selection)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
