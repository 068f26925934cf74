# SPDX-License-Identifier: Apache-2.0
"""The paper's measured speeds beside the TPU compiler's estimates for the same models, sizes and batch."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tqdm import tqdm

from lambdanet import text_table
from lambdanet.errors import InputError
from lambdanet.models.papers.speeds import CORES, IMAGES, TABLES, Row, Table
from lambdanet.training.tpu import steps
from lambdanet.training.tpu.check import DoesNotCompile, DoesNotFit
from lambdanet.training.tpu.report import CAVEAT, Report

TOPOLOGY = "v3:2x2"  # the 8 cores of the paper
Check = Callable[[Callable[[], steps.Step], str], Report]


@dataclasses.dataclass(frozen=True)
class Line:
    """A row with what came of compiling it: a report, or why there is none."""

    row: Row
    report: Report | None
    note: str = ""

    @property
    def images_per_second(self) -> float:
        """Of all cores."""
        return self.report.examples_per_second * CORES if self.report else 0.0


def lines(
    number: str,
    check: Check,
    rows: Collection[int] = (),
    told: Callable[[str], None] = lambda line: None,
) -> list[Line]:
    """Compiles the models of a table, with the batch halved until it fits, as the paper measured.

    Args:
      number: one of `TABLES`.
      check: compiles what a function returns for a topology, such as `isolated.check`.
      rows: which rows, from 1; empty for all.
      told: is given a line on each row.

    Raises:
      InputError: no such row.
    """
    table = TABLES[number]
    found = []
    for row in tqdm(chosen(table.rows, rows, f"table {number}"), disable=None, leave=False):
        found.append(_line(table, row, check))
        speed = found[-1].images_per_second
        figure = f"{_shown(table, table.figure(speed))} {table.unit}" if speed else found[-1].note
        told(f"{row.label}: {figure}")
    return found


def chosen(every: Sequence[Any], places: Collection[int], table: str) -> list[Any]:
    """Returns the rows of a table at some places, from 1; all of them for none.

    Raises:
      InputError: a place that the table does not have.
    """
    for place in places:
        if not 1 <= place <= len(every):
            raise InputError(f"rows received {place}; accepted: 1 to {len(every)}, as {table} has")
    return [row for place, row in enumerate(every, 1) if not places or place in places]


def render(number: str, found: list[Line], form: str = "text") -> str:
    """Returns a table as text: figures, times relative to the first row, and the rank correlation.

    Args:
      number: one of `TABLES`.
      found: by `lines`.
      form: one of `text_table.FORMATS`.
    """
    table = TABLES[number]
    header = ["row", "pixels", "batch", f"{table.unit}, paper", f"{table.unit}, ours"]
    header += ["time to first, paper", "time to first, ours", "model", "note"]
    first = found[0]
    body = []
    for line in found:
        speed, row = line.images_per_second, line.row
        times = table.seconds(row.printed) / table.seconds(first.row.printed)
        ours = first.images_per_second / speed if speed else 0.0
        body.append(
            [
                row.label,
                str(row.input_size),
                str(line.report.batch * CORES) if line.report else "-",
                _shown(table, row.printed),
                _shown(table, table.figure(speed)) if speed else "-",
                f"{times:.2f}",
                f"{ours:.2f}" if ours else "-",
                row.model,
                line.note,
            ]
        )
    text = text_table.render(header, body, form)
    if form == "csv":
        return text
    precision = "bfloat16" if table.mixed_precision else "float32"
    return (
        f"Table {number}: {table.title}, {precision}, on 8 cores of TPU v3\n"
        f"Ours is {CAVEAT}.\n\n{text}\n{_correlation(table, found)}\n"
    )


def to_json(number: str, found: list[Line]) -> dict[str, Any]:
    """Returns a table as JSON has it: the figures of each row, and the rank correlation."""
    table = TABLES[number]
    return {
        "table": number,
        "unit": table.unit,
        "estimate": CAVEAT,
        "rank_correlation": rank_correlation(table, found),
        "rows": [
            {
                "row": line.row.label,
                "model": line.row.model,
                "input_size": line.row.input_size,
                "batch": line.report.batch * CORES if line.report else None,
                "paper": line.row.printed,
                "ours": table.figure(line.images_per_second) if line.report else None,
                "note": line.note,
            }
            for line in found
        ],
    }


def rank_correlation(table: Table, found: list[Line]) -> float | None:
    """Returns Spearman's rank correlation of the paper's figures and ours; None for less than three rows."""
    pairs = [(line.row.printed, table.figure(line.images_per_second)) for line in found if line.report]
    if len(pairs) < 3:
        return None
    from scipy import stats

    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def _correlation(table: Table, found: list[Line]) -> str:
    value = rank_correlation(table, found)
    if value is None:
        return "No rank correlation of less than three rows."
    return f"Spearman's rank correlation of the paper's figures and ours: {value:.3f}"


def _line(table: Table, row: Row, check: Check) -> Line:
    batch = IMAGES // CORES
    recipe = steps.recipe_of(row.model, row.input_size)
    recipe = dataclasses.replace(recipe, mixed_precision=table.mixed_precision)
    while True:
        try:
            return Line(row, check(functools.partial(steps.of_recipe, recipe, table.mode, batch), TOPOLOGY))
        except DoesNotFit as error:
            if batch == 1:
                return Line(row, None, str(error))
            batch //= 2
        except DoesNotCompile as error:
            return Line(row, None, str(error))


def _shown(table: Table, figure: float) -> str:
    return f"{figure:.3f}" if table.unit == "s" else f"{figure:.0f}"
