# SPDX-License-Identifier: Apache-2.0
"""Renders tables as aligned text, Markdown or CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet.core.errors import check_known

FORMATS = ("text", "markdown", "csv")


def render(
    header: Sequence[str], rows: Sequence[Sequence[str]], table_format: str = "text"
) -> str:
    """Returns a table as lines of text.

    Args:
      header: the name of each column.
      rows: for each row, its cells; columns of numbers are flush right.
      table_format: one of `FORMATS`.

    Returns:
      The lines, each with a line break at its end.

    Raises:
      InputError: the format is unknown.

    Example:
      >>> print(render(["model", "size"], [["a", "7"], ["bc", "12"]]), end="")
      model  size
      a         7
      bc       12
    """
    check_format(table_format)
    if table_format == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *rows])
        return out.getvalue()
    columns = list(zip(header, *rows, strict=True))
    flush_right = [all(map(_is_number, column[1:])) for column in columns]
    if table_format == "markdown":
        rule = ["---:" if right else "---" for right in flush_right]
        return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in [header, *rows]:
        aligned = zip(row, widths, flush_right, strict=True)
        cells = [c.rjust(w) if right else c.ljust(w) for c, w, right in aligned]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as the text of a CSV file with all of their columns; missing cells are empty."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = []
    for row in rows:
        cells.append([row.get(name, "") for name in header])
    return render(header, cells, "csv")


def check_format(table_format: str) -> None:
    """Raises `InputError` for a format that is not one of `FORMATS`."""
    check_known("format", table_format, FORMATS)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "", 1).isdigit()


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as indented lines of aligned columns.

    Example:
      >>> print(align_columns([("list", "lists the models"), ("pseudo-label", "labels pictures")]))
        list          lists the models
        pseudo-label  labels pictures
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(f"  {line}" for line in lines)
