# SPDX-License-Identifier: Apache-2.0
"""The results of the layer benchmark as text tables."""

import textwrap
from collections.abc import Sequence

from benchmarks.interleaved.results import Measurement
from lambdanet.core import text_table

TITLES = {"forward": "forward", "both": "forward + backward"}
WIDTH = 120  # of the notes
LEGEND = (
    "ms: median time per call, then quartiles. x: speed relative to {reference}.\n"
    "MiB: peak memory per call."
)


def table(rows: Sequence[Measurement]) -> str:
    """Returns the table of a map and scope: a line per contender, a group of columns per pass."""
    case = rows[0].case
    header = [
        f"{case.height}x{case.width}, d={case.channels}, b={case.batch}, scope {case.scope_name}"
    ]
    lines = {row.contender: [row.contender] for row in rows}
    for name in dict.fromkeys(row.case.pass_name for row in rows):
        header += [f"{name} ms", "quartiles", "x", "MiB"]
        cells = {
            row.contender: _cells(row) for row in rows if row.case.pass_name == name
        }
        for contender, line in lines.items():
            line += cells.get(contender, ["-", "", "-", "-"])
    text = text_table.render(header, list(lines.values()))
    notes = [
        f"{row.contender}, {TITLES[row.case.pass_name]}: {row.note}"
        for row in rows
        if row.note
    ]
    for note in notes:
        text += (
            textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="    ")
            + "\n"
        )
    return text.rstrip()


def _cells(row: Measurement) -> list[str]:
    quartiles = (
        f"{number(row.milliseconds(0.25))}-{number(row.milliseconds(0.75))}"
        if row.seconds
        else ""
    )
    return [
        number(row.milliseconds()),
        quartiles,
        number(row.speed(), 3),
        number(row.mebibytes()),
    ]


def number(value: float | None, digits: int = 4) -> str:
    """Formats a number with `digits` significant digits, but all integer digits and at most three decimals.

    >>> number(0.12345), number(98.76543), number(123456.7), number(None)
    ('0.123', '98.77', '123457', '-')
    """
    if value is None:
        return "-"
    integer_digits = len(str(int(abs(value))))
    return f"{value:.{max(0, min(3, digits - integer_digits))}f}"
