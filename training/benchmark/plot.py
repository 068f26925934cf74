# SPDX-License-Identifier: Apache-2.0
"""Plots the results of the layer benchmark: a column per map, a row per kind and scope."""

import io
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lambdanet.training.benchmark.report import number
from lambdanet.training.benchmark.results import Measurement, ran_on

COLORS = {"auto": "#2563eb", "einsum": "#111827", "peer/": "#d97706", "attention/": "#059669", "": "#64748b"}
FAINT, GRID = "#6b7280", "#e2e6ec"

Value = Callable[[Measurement], float | None]


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
