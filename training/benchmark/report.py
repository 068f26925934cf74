# SPDX-License-Identifier: Apache-2.0
"""The results of the layer benchmark: text tables, and plots with a column per map."""

import io
import textwrap
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lambdanet import text_table
from lambdanet.training.benchmark.results import Machine, Measurement, ran_on

TITLES = {"forward": "forward", "both": "forward + backward"}
WIDTH = 120  # of the notes
LEGEND = (
    "ms: median time per call, then quartiles. x: speed relative to {reference}.\nMiB: peak memory per call."
)
COLORS = {"auto": "#2563eb", "einsum": "#111827", "peer/": "#d97706", "attention/": "#059669", "": "#64748b"}

Value = Callable[[Measurement], float | None]


def table(rows: Sequence[Measurement]) -> str:
    """Returns the table of a map and scope: a line per contender, a group of columns per pass."""
    case = rows[0].case
    header = [f"{case.height}x{case.width}, d={case.channels}, b={case.batch}, scope {case.scope_name}"]
    lines = {row.contender: [row.contender] for row in rows}
    for name in dict.fromkeys(row.case.pass_name for row in rows):
        header += [f"{name} ms", "quartiles", "x", "MiB"]
        cells = {row.contender: _cells(row) for row in rows if row.case.pass_name == name}
        for contender, line in lines.items():
            line += cells.get(contender, ["-", "", "-", "-"])
    text = text_table.render(header, list(lines.values()))
    notes = [f"{row.contender}, {TITLES[row.case.pass_name]}: {row.note}" for row in rows if row.note]
    for note in notes:
        text += textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="    ") + "\n"
    return text.rstrip()


def _cells(row: Measurement) -> list[str]:
    quartiles = f"{number(row.milliseconds(0.25))}-{number(row.milliseconds(0.75))}" if row.seconds else ""
    return [number(row.milliseconds()), quartiles, number(row.speed(), 3), number(row.mebibytes())]


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


def _against(timed: dict[str, Measurement], own: str, others: Sequence[str], kind: str) -> str:
    """Compares a contender with the fastest of others on the same device."""
    found = {
        name: timed[name].milliseconds() or 0.0
        for name in others
        if own in timed and name in timed and name != own and timed[name].device == timed[own].device
    }
    if not found:
        return ""
    best = min(found, key=found.__getitem__)
    ratio = found[best] / (timed[own].milliseconds() or 0.0)
    return f"{own} runs at {number(ratio, 3)} times the speed of {best}, the fastest {kind}"


def plots(rows: Sequence[Measurement], machine: Machine) -> dict[str, bytes]:
    """Returns PNG files by name: the time per call, and the memory if it is known.

    Args:
      rows: the results.
      machine: the description of the machine, for the footer.
    """
    footer = f"{ran_on([row.device for row in rows], machine)}, {rows[0].case.dtype}"
    time = "Time per call in ms: median, with a line from minimum to maximum"
    values: tuple[tuple[str, Value, str], ...] = (
        ("layers_time.png", Measurement.milliseconds, time),
        ("layers_memory.png", Measurement.mebibytes, "Peak memory per call in MiB"),
    )
    return {name: _plot(rows, value, title, footer) for name, value, title in values if any(map(value, rows))}


def _plot(rows: Sequence[Measurement], value: Value, title: str, footer: str) -> bytes:
    cases = {row.case.map: row.case for row in rows}
    blocks: dict[str, list[Measurement]] = {}
    for row in rows:
        kind = "position lambda" if row.contender.startswith("position/") else "layer"
        blocks.setdefault(f"{kind}, scope {row.case.scope_name}", []).append(row)
    names = [list(dict.fromkeys(row.contender for row in block)) for block in blocks.values()]
    heights = [len(block) + 2 for block in names]
    figure = Figure(figsize=(3 + 2.5 * len(cases), 2 + 0.22 * sum(heights)), dpi=140, layout="constrained")
    grid = figure.subplots(len(blocks), len(cases), squeeze=False, sharey="row", height_ratios=heights)
    for panels, (label, block), contenders in zip(grid, blocks.items(), names, strict=True):
        panels[0].set_ylabel(label)
        for axes, name in zip(panels, cases, strict=True):
            _draw_panel(axes, [row for row in block if row.case.map == name], contenders, value)
    for axes, case in zip(grid[0], cases.values(), strict=True):
        axes.set_title(f"{case.height}x{case.width}, d={case.channels}, b={case.batch}")
    figure.suptitle(f"{title}\nfull dots: forward + backward, empty dots: forward", fontsize=11)
    return png(figure, footer)


def _draw_panel(axes: Axes, rows: Sequence[Measurement], names: Sequence[str], value: Value) -> None:
    """Draws a line per contender."""
    for row in rows:
        y = names.index(row.contender)
        color = next(color for part, color in COLORS.items() if part in row.contender)
        if middle := value(row):
            if value is Measurement.milliseconds:
                axes.plot([1000 * min(row.seconds), 1000 * max(row.seconds)], [y, y], color=color)
            axes.plot(middle, y, "o", color=color, mfc=color if row.case.backward else "white")
    axes.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)), yticklabels=names)
    axes.margins(x=0.15)
    set_log_scale(axes, "x")


def set_log_scale(axes: Axes, *sides: str) -> None:
    """Makes axes, "x" or "y", logarithmic, with plain numbers and a grid."""
    for side in sides:
        axes.set(**{f"{side}scale": "log"})
        (low, high), axis = getattr(axes, f"get_{side}lim")(), getattr(axes, f"{side}axis")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 50 * low else (1,)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color="#e2e6ec")


def png(figure: Figure, footer: str) -> bytes:
    """Returns a figure with a footer as a PNG file."""
    figure.supxlabel(footer, fontsize=8, color="#6b7280")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
