# SPDX-License-Identifier: Apache-2.0
"""The results of the layer benchmark: text tables, and plots with a column per map."""

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lambdanet.training.benchmark.results import Measurement, ran_on

TITLES = {"forward": "forward", "both": "forward + backward"}
WIDTH, NAME_WIDTH = 120, 30  # of the tables
LEGEND = (
    "ms: median time per call, then quartiles. x: speed relative to {reference}.\nMiB: peak memory per call."
)
COLORS = {"auto": "#2563eb", "einsum": "#111827", "peer/": "#d97706", "attention/": "#059669", "": "#64748b"}
FAINT, GRID = "#6b7280", "#e2e6ec"

Value = Callable[[Measurement], float | None]


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


def plots(rows: Sequence[Measurement], machine: Mapping[str, str | float]) -> dict[str, bytes]:
    """Returns PNG files by name: the time per call, and the memory if it is known.

    Args:
      rows: the results.
      machine: the description of the machine, for the footer.
    """
    footer = f"{ran_on(rows, machine)}, {rows[0].case.dtype}"
    drawn = {}
    if any(row.seconds for row in rows):
        title = "Time per call in ms: median, with a line from minimum to maximum"
        drawn["layers_time.png"] = _plot(rows, Measurement.milliseconds, title, footer)
    if any(row.peak_bytes for row in rows):
        drawn["layers_memory.png"] = _plot(rows, Measurement.mebibytes, "Peak memory per call in MiB", footer)
    return drawn


def _plot(rows: Sequence[Measurement], value: Value, title: str, footer: str) -> bytes:
    maps = list(dict.fromkeys(row.case.map for row in rows))
    blocks: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        kind = "position lambda" if row.contender.startswith("position/") else "layer"
        blocks.setdefault((kind, row.case.scope_name), []).append(row)
    names = [list(dict.fromkeys(row.contender for row in block)) for block in blocks.values()]
    heights = [len(block) + 2 for block in names]
    figure = Figure(figsize=(3 + 2.5 * len(maps), 2 + 0.22 * sum(heights)), dpi=140, layout="constrained")
    grid = figure.subplots(len(blocks), len(maps), squeeze=False, height_ratios=heights)
    for panels, ((kind, scope), block), contenders in zip(grid, blocks.items(), names, strict=True):
        panels[0].set_ylabel(f"{kind}, scope {scope}")
        for axes, name in zip(panels, maps, strict=True):
            _draw_panel(axes, [row for row in block if row.case.map == name], contenders, value)
            if axes is not panels[0]:
                axes.set_yticklabels([])
    for axes, name in zip(grid[0], maps, strict=True):
        case = next(row.case for row in rows if row.case.map == name)
        axes.set_title(f"{case.height}x{case.width}, d={case.channels}, b={case.batch}")
    passes = "full dots: forward + backward, empty dots: forward; right: reference / contender"
    figure.suptitle(f"{title}\n{passes}, higher is better", fontsize=11)
    figure.supxlabel(footer, fontsize=8, color=FAINT)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _draw_panel(axes: Axes, rows: Sequence[Measurement], names: Sequence[str], value: Value) -> None:
    """Draws a line per contender; with the ratio of the last pass."""
    ratios = ["none"] * len(names)
    for row in rows:
        y, color = names.index(row.contender), _color(row.contender)
        if middle := value(row):
            if value is Measurement.milliseconds:
                axes.plot([1000 * min(row.seconds), 1000 * max(row.seconds)], [y, y], color=color)
            axes.plot(middle, y, "o", color=color, mfc=color if row.case.backward else "white")
            if ratio := row.advantage(value):
                ratios[y] = f"{number(ratio, 3)}x"
    axes.set(xscale="log", ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)), yticklabels=names)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(color=GRID)
    axes.margins(x=0.15)
    sides = axes.secondary_yaxis("right")
    sides.set_yticks(range(len(names)), ratios)
    for labels in (axes.get_yticklabels(), sides.get_yticklabels()):
        for label, name in zip(labels, names, strict=True):
            label.set(color=_color(name), fontsize=8)


def _color(name: str) -> str:
    return next(color for part, color in COLORS.items() if part in name)
