# SPDX-License-Identifier: Apache-2.0
"""The results of the layer benchmark as text tables of at most 120 columns."""

import textwrap
from collections.abc import Sequence

from lambdanet.training.benchmark.results import Measurement

TITLES = {"forward": "forward", "both": "forward + backward"}
WIDTH, NAME_WIDTH = 120, 30
LEGEND = (
    "ms: median time per call, then quartiles. x: speed relative to {reference}.\nMiB: peak memory per call."
)


def table(rows: Sequence[Measurement]) -> str:
    """Returns the table of a map and scope: a line per contender, a group of columns per pass."""
    case = rows[0].case
    passes = list(dict.fromkeys(row.case.pass_name for row in rows))
    cells = {(row.contender, row.case.pass_name): row for row in rows}
    title = f"{case.height}x{case.width}, d={case.channels}, b={case.batch}, scope {case.scope_name}"
    head = "".join(f"{'ms':>11}  {'quartiles':^13} {'x':>6} {'MiB':>8}" for _ in passes)
    lines = [
        f"{title:<{NAME_WIDTH}}" + "".join(f"   {TITLES[name]:^40}" for name in passes).rstrip(),
        f"{'':<{NAME_WIDTH}}" + head,
    ]
    for contender in dict.fromkeys(row.contender for row in rows):
        found = (cells.get((contender, name)) for name in passes)
        lines.append(f"{contender:<{NAME_WIDTH}}" + "".join(_cells(row) for row in found).rstrip())
    for row in rows:
        if row.note:
            note = f"{row.contender}, {TITLES[row.case.pass_name]}: {row.note}"
            lines += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _cells(row: Measurement | None) -> str:
    if row is None or not row.seconds:
        return f"{'-':>11}  {'':^13} {'-':>6} {'-':>8}"
    quartiles = f"{number(row.milliseconds(0.25))}-{number(row.milliseconds(0.75))}"
    return (
        f"{number(row.milliseconds()):>11}  {quartiles:^13} {number(row.speed(), 3):>6} "
        f"{number(row.mebibytes()):>8}"
    )


def number(value: float | None, digits: int = 4) -> str:
    """Formats a number with `digits` significant digits, but all integer digits and at most three decimals.

    >>> number(0.12345), number(98.76543), number(123456.7), number(None)
    ('0.123', '98.77', '123457', '-')
    """
    if value is None:
        return "-"
    integer_digits = len(str(int(abs(value))))
    return f"{value:.{max(0, min(3, digits - integer_digits))}f}"


def summary(rows: Sequence[Measurement]) -> str:
    """Returns a line per pass that compares the library's own choice with the fastest other contender."""
    lines = []
    for name in dict.fromkeys(row.case.pass_name for row in rows):
        timed = {r.contender: r for r in rows if r.seconds and r.case.pass_name == name}
        parts = [
            _against(timed, "position/auto", [n for n in timed if n.startswith("position/")], "other form"),
            _against(timed, "layer/auto", ["peer/lucidrains", "peer/timm"], "peer"),
            _against(timed, "attention/halo", ["peer/kecam_halo"], "peer"),
        ]
        lines += [f"{TITLES[name]}: {part}" for part in parts if part]
    return "\n".join(lines)


def _against(timed: dict[str, Measurement], own: str, others: Sequence[str], kind: str) -> str:
    """Compares a contender with the fastest of others on the same device."""
    if own not in timed:
        return ""
    found = [timed[name] for name in others if name in timed and name != own]
    found = [row for row in found if row.device == timed[own].device]
    if not found:
        return ""
    best = min(found, key=_median)
    ratio = _median(best) / _median(timed[own])
    return f"{own} runs at {number(ratio, 3)} times the speed of {best.contender}, the fastest {kind}"


def _median(row: Measurement) -> float:
    return row.milliseconds() or 0.0
