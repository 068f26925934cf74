# SPDX-License-Identifier: Apache-2.0
"""Renders tables as aligned text, Markdown or CSV."""

import csv
import io
from collections.abc import Sequence

from lambdanet.errors import unknown

FORMATS = ("text", "markdown", "csv")


def render(header: Sequence[str], rows: Sequence[Sequence[str]], table_format: str = "text") -> str:
    """Returns a table as lines of text, in one of `FORMATS`.

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
    flush_right = [all(_is_number(cell) for cell in column[1:]) for column in columns]
    if table_format == "markdown":
        rule = ["---:" if right else "---" for right in flush_right]
        return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in [header, *rows]:
        cells = zip(row, widths, flush_right, strict=True)
        lines.append("  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells).rstrip() + "\n")
    return "".join(lines)


def check_format(table_format: str) -> None:
    """Raises `InputError` for a format that is not one of `FORMATS`."""
    if table_format not in FORMATS:
        raise unknown("format", table_format, FORMATS)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "", 1).isdigit()
