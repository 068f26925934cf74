# SPDX-License-Identifier: Apache-2.0
"""Helpers for generated text: tables in Markdown, files of results, and summaries."""

import csv
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lambdanet.core import text_table

RESULTS = Path(__file__).parents[1] / "results"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table without the columns that are empty in all rows."""
    shown = [
        i for i in range(len(header)) if any(row[i] not in ("", "-") for row in rows)
    ]
    cells = [[line[i].replace("|", r"\|") for i in shown] for line in (header, *rows)]
    return text_table.render(cells[0], cells[1:], "markdown")


def read_csv(name: str) -> list[dict[str, str]]:
    """Returns the rows of a file in docs/results."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def code(names: Sequence[str]) -> str:
    """Returns names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names) or "none"


def summary(documented: Any) -> str:
    """Returns the first line of a docstring without the period at its end."""
    return (inspect.getdoc(documented) or "").partition("\n")[0].removesuffix(".")
