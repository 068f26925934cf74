# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.arena`: trains operators on controlled tasks, and appends a row per training."""

import sys
from pathlib import Path

from benchmarks import program
from benchmarks.turns import results
from experiments.arena import plan, training
from experiments.arena.tasks import TASKS
from experiments.rows import append_row
from lambdanet import command_line, text_table
from lambdanet.errors import check_counts, check_known

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "arena.csv"
LEFT = ["task", "setting", "cells run", "cells left", "hours left"]


def run_arena(
    tasks: list[str] | None = None,
    out: str = str(RESULTS),
    cells: int | None = None,
    plan_only: bool = False,
) -> None:
    """Runs the cells of the plan that have no row yet, and appends one for each.

    Args:
      tasks: the tasks; default: all.
      out: the file of results.
      cells: the number of cells after which to stop; default: all.
      plan_only: whether to print what is left, and train nothing.

    Raises:
      InputError: a task is unknown, the number of cells is not positive, or `out` is another file.
    """
    for task in tasks or ():
        check_known("task", task, tuple(TASKS))
    if cells is not None:
        check_counts(cells=cells)
    path = Path(out)
    rows = plan.read_rows(path)
    if plan_only:
        print(text_table.render(LEFT, plan.summarize(rows, tasks or ())), end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = "{cpu}, {backend}".format_map(results.announce("float32"))
    for number, cell in enumerate(plan.remaining_cells(rows, tasks or ()), start=1):
        row = training.train(cell, machine)
        append_row(path, row)
        rows[cell] = {name: str(value) for name, value in row.items()}
        shown = (
            "{task} {operator} {settings} seed {seed} rate {learning_rate}: "
            "{test_accuracy} in {seconds} s"
        )
        print(shown.format_map(row), flush=True)
        if number == cells:
            break


COMMAND = program("experiments.arena", run_arena)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
