# SPDX-License-Identifier: Apache-2.0
"""Means, paired differences and comparisons with the predictions, of the rows of the study."""

import csv
import functools
from pathlib import Path
from typing import NamedTuple

from experiments.arena.summary import interval
from experiments.fashion.contenders import STUDIES

PREDICTIONS = Path(__file__).parent / "predictions.csv"
# Contenders that the others of their study are compared with.
REFERENCES = {"networks": "resnet_micro", "mistakes": "lambda"}

Rows = list[dict[str, str]]


class Prediction(NamedTuple):
    """What was expected before the first run, and the reason.

    For networks, the range of the mean accuracy in percent; for mistakes, that of the mean difference to the
    lambda layer in percentage points.
    """

    lowest: float
    highest: float
    why: str


@functools.cache
def predictions(study: str) -> dict[str, Prediction]:
    """Returns the predictions for the contenders of a study, which were committed before the first run."""
    with PREDICTIONS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["study"] == study]
    return {
        row["contender"]: Prediction(
            float(row["lowest"]), float(row["highest"]), row["why"]
        )
        for row in rows
    }


def accuracies(
    rows: Rows, study: str, contender: str, column: str = "accuracy"
) -> dict[int, float]:
    """Returns an accuracy of each seed in percent, nan where the network has no weights for it."""
    return {
        int(row["seed"]): 100 * float(row[column])
        for row in rows
        if (row["study"], row["contender"]) == (study, contender)
    }


def mean(
    rows: Rows, study: str, contender: str, column: str = "accuracy"
) -> tuple[float, float | None] | None:
    """Returns the mean over the seeds and the half of its 95 % interval; None before the first run."""
    values = [*accuracies(rows, study, contender, column).values()]
    return interval(values) if values else None


def difference(
    rows: Rows, study: str, contender: str, reference: str
) -> tuple[float, float | None] | None:
    """Returns the accuracy minus that of a reference with the same seeds, in percentage points, as `mean`."""
    own = accuracies(rows, study, contender)
    others = accuracies(rows, study, reference)
    pairs = [own[seed] - others[seed] for seed in own if seed in others]
    return interval(pairs) if pairs else None


def measured(
    rows: Rows, study: str, contender: str
) -> tuple[float, float | None] | None:
    """Returns what a `Prediction` is about, as `mean`."""
    if study == "mistakes":
        return difference(rows, study, contender, REFERENCES[study])
    return mean(rows, study, contender)


def outcome(rows: Rows, study: str, contender: str) -> str:
    """Returns whether the prediction was "right" or "wrong"; "-" without one, or before the first run."""
    expected = predictions(study).get(contender)
    found = measured(rows, study, contender)
    if expected is None or found is None:
        return "-"
    return "right" if expected.lowest <= found[0] <= expected.highest else "wrong"


def right_predictions(rows: Rows) -> tuple[int, int]:
    """Returns how many predictions were right, and how many could be compared."""
    found = [
        outcome(rows, study, contender)
        for study, chosen in STUDIES.items()
        for contender in chosen
    ]
    return found.count("right"), len(found) - found.count("-")
