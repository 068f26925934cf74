# SPDX-License-Identifier: Apache-2.0
"""The results of the layer benchmark: text tables and plots."""

import io
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.turns.results import Machine, Measurement, ran_on
from lambdanet import text_table

TITLES = {"forward": "forward", "both": "forward + backward"}
WIDTH = 120  # of the notes
LEGEND = (
    "ms: median time per call, then quartiles. x: speed relative to {reference}.\n"
    "MiB: peak memory per call."
)
COLORS = {
    "auto": "#2563eb",
    "einsum": "#111827",
    "peer/": "#d97706",
    "attention/": "#059669",
    "": "#64748b",
}


class Dot(NamedTuple):
    """A value in a plot, with a line from `low` to `high`."""

    column: str
    block: str
    name: str
    value: float
    low: float
    high: float
    color: str
    full: bool


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


def summary(rows: Sequence[Measurement]) -> str:
    """Returns a line per pass that compares the library's own choice with the fastest other contender."""
    lines = []
    for name in dict.fromkeys(row.case.pass_name for row in rows):
        timed = {r.contender: r for r in rows if r.seconds and r.case.pass_name == name}
        forms = [contender for contender in timed if contender.startswith("position/")]
        parts = [
            _against(timed, "position/auto", forms, "other form"),
            _against(timed, "layer/auto", ["peer/lucidrains", "peer/timm"], "peer"),
            _against(timed, "attention/halo", ["peer/kecam_halo"], "peer"),
        ]
        lines += [f"{TITLES[name]}: {part}" for part in parts if part]
    return "\n".join(lines)


def _against(
    timed: dict[str, Measurement], own: str, others: Sequence[str], kind: str
) -> str:
    """Compares a contender with the fastest of others on the same device."""
    found = {
        name: timed[name].milliseconds() or 0.0
        for name in others
        if own in timed
        and name in timed
        and name != own
        and timed[name].device == timed[own].device
    }
    if not found:
        return ""
    best = min(found, key=found.__getitem__)
    ratio = found[best] / (timed[own].milliseconds() or 0.0)
    return f"{own} runs at {number(ratio, 3)} times the speed of {best}, the fastest {kind}"


def plots(rows: Sequence[Measurement], machine: Machine) -> dict[str, bytes]:
    """Returns PNG files by name: the time per call, and the memory if it is known."""
    passes = "full dots: forward + backward, empty dots: forward"
    footer = f"{ran_on([row.device for row in rows], machine)}, {rows[0].case.dtype}"
    times = []
    for row in rows:
        if row.seconds:
            quantiles = [row.milliseconds(q) or 0.0 for q in (0.5, 0, 1)]
            times.append(_dot(row, *quantiles))
    memory = [
        _dot(row, *[row.mebibytes() or 0.0] * 3) for row in rows if row.peak_bytes
    ]
    titles = {
        "layers_time.png": (
            times,
            f"Time per call in ms: median, from minimum to maximum\n{passes}",
        ),
        "layers_memory.png": (memory, f"Peak memory per call in MiB\n{passes}"),
    }
    return {
        name: draw(dots, title, footer)
        for name, (dots, title) in titles.items()
        if dots
    }


def _dot(row: Measurement, middle: float, low: float, high: float) -> Dot:
    case = row.case
    name = row.contender
    kind = "position lambda" if name.startswith("position/") else "layer"
    block = f"{kind}, scope {case.scope_name}"
    color = next(color for part, color in COLORS.items() if part in name)
    column = f"{case.height}x{case.width}, d={case.channels}, b={case.batch}"
    return Dot(column, block, name, middle, low, high, color, case.backward)


def draw(dots: Sequence[Dot], title: str, footer: str) -> bytes:
    """Returns a PNG file with a panel per column and block, and a line per name."""
    columns = list(dict.fromkeys(dot.column for dot in dots))
    blocks: dict[str, list[str]] = {}
    for dot in dots:
        names = blocks.setdefault(dot.block, [])
        if dot.name not in names:
            names.append(dot.name)
    heights = [len(names) + 2 for names in blocks.values()]
    figure = Figure(
        figsize=(3 + 2.5 * len(columns), 2 + 0.22 * sum(heights)),
        dpi=140,
        layout="constrained",
    )
    grid = figure.subplots(
        len(blocks), len(columns), squeeze=False, sharey="row", height_ratios=heights
    )
    for panels, (block, names) in zip(grid, blocks.items(), strict=True):
        panels[0].set_ylabel(block)
        for axes, column in zip(panels, columns, strict=True):
            for dot in dots:
                if (dot.block, dot.column) == (block, column):
                    y = names.index(dot.name)
                    axes.plot([dot.low, dot.high], [y, y], color=dot.color)
                    axes.plot(
                        dot.value,
                        y,
                        "o",
                        color=dot.color,
                        mfc=dot.color if dot.full else "white",
                    )
            axes.set(
                xscale="log",
                ylim=(len(names) - 0.5, -0.5),
                yticks=range(len(names)),
                yticklabels=names,
            )
            axes.margins(x=0.15)
            low, high = axes.get_xlim()
            axes.xaxis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,))
            )
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.grid(color="#e2e6ec")
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(column)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(footer, fontsize=8, color="#6b7280")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
