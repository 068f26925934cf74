# SPDX-License-Identifier: Apache-2.0
"""Means, paired intervals and comparisons with the predictions, of the rows of the arena."""

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from experiments.arena.operators import OPERATORS
from experiments.arena.plan import (
    Cell,
    Row,
    best_learning_rate,
    has_form,
    headline,
    seeds_done,
)
from experiments.arena.settings import Setup
from experiments.arena.tasks import TASKS

REFERENCE = "lambda_both"  # of differences
# The least difference between the best and the worst operator of a task that tells something.
SEPARATES = 0.1
PREDICTIONS = Path(__file__).parent / "predictions.csv"


class Prediction(NamedTuple):
    """The accuracies that were expected before the first run, and the reason."""

    lowest: float
    highest: float
    why: str


def predictions() -> dict[Setup, Prediction]:
    """Returns the predictions, which were committed before the first run."""
    with PREDICTIONS.open(encoding="utf-8", newline="") as file:
        return {
            Setup(row["task"], row["operator"]): Prediction(
                float(row["lowest"]), float(row["highest"]), row["why"]
            )
            for row in csv.DictReader(file)
        }


def accuracies(setup: Setup, rows: dict[Cell, Row]) -> dict[int, float]:
    """Returns the test accuracy of each seed at the best learning rate."""
    return {
        int(row["seed"]): float(row["test_accuracy"]) for row in seeds_done(setup, rows)
    }


def mean(setup: Setup, rows: dict[Cell, Row]) -> float | None:
    """Returns the mean test accuracy over the seeds that have run; None before the search is complete."""
    values = accuracies(setup, rows).values()
    return statistics.mean(values) if values else None


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean of values, and the half of its 95 % interval by Student's t; None for one value.

    Both are nan where a value is.
    """
    if len(values) < 2:
        return values[0], None
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return statistics.mean(values), float(half)


def difference(
    setup: Setup, rows: dict[Cell, Row]
) -> tuple[float, float | None] | None:
    """Returns the accuracy minus that of `REFERENCE` with the same seeds, as an `interval`."""
    own, other = (
        accuracies(s, rows) for s in (setup, setup._replace(operator=REFERENCE))
    )
    paired = [own[seed] - other[seed] for seed in own if seed in other]
    return interval(paired) if paired and setup.operator != REFERENCE else None


def searched(rows: dict[Cell, Row]) -> list[str]:
    """Returns the tasks of which an operator has been searched, in the order of the plan."""
    return list(
        dict.fromkeys(s.task_name for s in headline() if best_learning_rate(s, rows))
    )


def separating(rows: dict[Cell, Row]) -> list[str]:
    """Returns the tasks of `searched` whose operators differ, or have not all run."""
    return [task for task in searched(rows) if _separates(task, rows)]


def title(task: str) -> str:
    """Returns the name of a task in tables and plots."""
    return TASKS[task]().title


def _separates(task: str, rows: dict[Cell, Row]) -> bool:
    means = [
        mean(setup, rows) for name in OPERATORS if has_form(setup := Setup(task, name))
    ]
    found = [value for value in means if value is not None]
    return len(found) < len(means) or max(found) - min(found) >= SEPARATES
