# SPDX-License-Identifier: Apache-2.0
"""The plan of the arena: which setups run, in which order, with which learning rates and seeds."""

import csv
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.arena.operators import OPERATORS
from experiments.arena.settings import Setup
from experiments.arena.tasks import TASKS
from lambdanet.errors import InputError

# All with seed 0; the best on validation data for the others.
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SEEDS = range(5)
# The headline: tasks whose cells run together, the searches for learning rates first.
PHASES = (
    ("pointer", "recall"),
    ("in_context",),
    ("segment",),
    ("connected",),
    ("digits", "mnist1d", "pointer_permuted"),
    ("segment_permuted",),
    ("pointing_digits", "relations"),
)


class Factor(NamedTuple):
    """A series of settings of an operator on a task.

    Attributes:
      name: the setting.
      task, operator: their names.
      values: its values; those of a factor of the paper from its lowest accuracy to its highest, or as its
        accuracies and text go on where it does not have a value.
      usual: the value that rows of the headline have.
      paper: where the paper has that order; empty if it does not.
    """

    name: str
    task: str
    operator: str
    values: tuple[float | str | None, ...]
    usual: float | str
    paper: str = ""

    def setups(self) -> list[Setup]:
        """Returns a setup for each value."""
        settings = [
            "" if value == self.usual else f"{self.name}={value}"
            for value in self.values
        ]
        return [Setup(self.task, self.operator, each) for each in settings]


STDDEV_TASKS = ("recall", "in_context", "pointer", "segment")
BATCH_NORM = ("pointer", "segment")
FACTORS = (
    *(
        Factor("position_stddev", task, "lambda_both", (1, 0.1, 0.02), 1)
        for task in STDDEV_TASKS
    ),
    Factor("key_dim", "recall", "lambda_content", (8, 16, 32, 64), 16, "Table 8"),
    Factor("key_dim", "pointer", "lambda_position", (4, 8, 16), 16, "Table 8"),
    Factor("num_heads", "recall", "lambda_content", (1, 2, 4), 4, "Table 8"),
    Factor("multi_head", "recall", "lambda_content", (False, True), False),
    Factor("scope", "segment", "lambda_position", (3, 7, 11), 7, "Table 10"),
    Factor(
        "key_normalization",
        "recall",
        "lambda_content",
        (None, "l2", "softmax"),
        "softmax",
        "Table 11",
    ),
    *(
        Factor(
            "use_batch_norm", task, "lambda_position", (False, True), True, "Table 11"
        )
        for task in BATCH_NORM
    ),
    Factor(
        "placement",
        "segment",
        "lambda_both",
        ("CCC", "OCC", "CCO", "OOO"),
        "OOO",
        "Table 12",
    ),
    *(
        Factor("pairs", "recall", operator, (4, 8, 16, 32), 32)
        for operator in OPERATORS
    ),
    *(
        Factor("parameters", "pointer", operator, (5_000, 20_000, 60_000), 20_000)
        for operator in OPERATORS
    ),
)

Row = dict[str, str]
CELL = {"task", "operator", "settings", "seed", "learning_rate"}  # columns


class Cell(NamedTuple):
    """A training: a setup, a seed and a learning rate; in the file of results, a row."""

    setup: Setup
    seed: int
    learning_rate: float

    @classmethod
    def of(cls, row: Row) -> "Cell":
        """Returns the cell of a row."""
        setup = Setup(row["task"], row["operator"], row["settings"])
        return cls(setup, int(row["seed"]), float(row["learning_rate"]))


def has_form(setup: Setup) -> bool:
    """Returns whether the operator exists for the task; not all have a causal form."""
    return bool(OPERATORS[setup.operator].causal) or not setup.task.causal


def phases(tasks: Sequence[str] = ()) -> list[list[Setup]]:
    """Returns the setups of the plan, or of some tasks, by phase: the headline, then the factors."""
    planned = []
    for phase in PHASES:
        planned.append(
            [Setup(task, operator) for task in phase for operator in OPERATORS]
        )
    for factor in FACTORS:
        planned.append([setup for setup in factor.setups() if setup.settings])
    accepted = tasks or TASKS
    chosen = []
    for setups in planned:
        left = [s for s in setups if has_form(s) and s.task_name in accepted]
        if left:
            chosen.append(left)
    return chosen


def headline() -> list[Setup]:
    """Returns the setups of the headline, which have no settings."""
    return [setup for phase in phases() for setup in phase if not setup.settings]


def read_rows(path: Path) -> dict[Cell, Row]:
    """Returns the rows of a file of results by cell; none without the file, and none for a line cut off.

    Raises:
      InputError: the file is another one.
    """
    lines = (
        path.read_text(encoding="utf-8").splitlines(keepends=True)
        if path.exists()
        else []
    )
    rows = csv.DictReader(line for line in lines if line.endswith("\n"))
    if rows.fieldnames and not CELL <= set(rows.fieldnames):
        raise InputError(
            f"{path} is not a file of the arena's results; its first line is {lines[0].strip()!r}"
        )
    return {Cell.of(row): row for row in rows}


def best_learning_rate(setup: Setup, rows: dict[Cell, Row]) -> float | None:
    """Returns the learning rate with the best validation accuracy of seed 0; None before all have run.

    Of equal ones, it is the one that reached 90 % first, or the smallest.
    """

    def rank(rate: float) -> tuple[float, float]:
        row = rows[Cell(setup, 0, rate)]
        return float(row["validation_accuracy"]), -float(row["steps_to_90"] or "inf")

    done = [rate for rate in LEARNING_RATES if Cell(setup, 0, rate) in rows]
    return max(done, key=rank) if len(done) == len(LEARNING_RATES) else None


def remaining_cells(rows: dict[Cell, Row], tasks: Sequence[str] = ()) -> Iterator[Cell]:
    """Yields the cells without a row, in order; the caller adds rows while it iterates."""
    for phase in phases(tasks):
        for setup, rate in itertools.product(phase, LEARNING_RATES):
            if Cell(setup, 0, rate) not in rows:
                yield Cell(setup, 0, rate)
        for seed, setup in itertools.product(SEEDS[1:], phase):
            best = best_learning_rate(setup, rows)
            assert best is not None
            if Cell(setup, seed, best) not in rows:
                yield Cell(setup, seed, best)


def seeds_done(setup: Setup, rows: dict[Cell, Row]) -> list[Row]:
    """Returns the rows of a setup at its best learning rate, by seed."""
    rate = best_learning_rate(setup, rows)
    cells = [Cell(setup, seed, rate) for seed in SEEDS] if rate else []
    return [rows[cell] for cell in cells if cell in rows]


def cells_left(setup: Setup, rows: dict[Cell, Row]) -> int:
    """Returns the number of cells of a setup that have no row."""
    searched = sum(Cell(setup, 0, rate) in rows for rate in LEARNING_RATES)
    return (
        len(LEARNING_RATES)
        - searched
        + len(SEEDS)
        - max(1, len(seeds_done(setup, rows)))
    )


def summarize(rows: dict[Cell, Row], tasks: Sequence[str] = ()) -> list[list[str]]:
    """Returns a row per task and setting: cells that have run, cells left, and their hours.

    Hours are estimated from the rows of the setup, else from those of the operator, else from all.
    """
    table = []
    for name, group in itertools.groupby(
        itertools.chain(*phases(tasks)),
        lambda setup: (setup.task_name, setup.settings.partition("=")[0]),
    ):
        setups = list(group)
        left = {setup: cells_left(setup, rows) for setup in setups}
        hours = (
            sum(number * _seconds(setup, rows) for setup, number in left.items()) / 3600
        )
        total = len(setups) * (len(LEARNING_RATES) + len(SEEDS) - 1)
        missing = sum(left.values())
        known = "-" if math.isnan(hours) else f"{hours:.1f}"
        table.append([*name, str(total - missing), str(missing), known])
    return table


def _seconds(setup: Setup, rows: dict[Cell, Row]) -> float:
    """Returns the seconds of a training: those of the setup, else in proportion to the work."""

    def work(of: Setup) -> int:
        return of.task.epochs * of.task.mixers * math.prod(of.task.shape[:-1])

    measured = [(cell.setup, float(row["seconds"])) for cell, row in rows.items()]
    own = [seconds for of, seconds in measured if of == setup]
    rates: dict[Setup, list[float]] = {}
    for of, seconds in measured:
        rates.setdefault(of, []).append(seconds / work(of))
    same = [
        rate
        for of, found in rates.items()
        if of.operator == setup.operator
        for rate in found
    ]
    every = [rate for found in rates.values() for rate in found]
    return statistics.mean(
        own or [work(setup) * rate for rate in same or every] or [math.nan]
    )
