# SPDX-License-Identifier: Apache-2.0
"""Plots the results of the layer benchmark: a column per map, a block per kind and scope."""

import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

from lambdanet.training.benchmark.report import number
from lambdanet.training.benchmark.results import Measurement, ran_on

# Lengths in units. The plot is drawn with `DRAW_SCALE` pixels per unit and then reduced to `SCALE`.
MARGIN, NAMES, PANEL, RATIO, GAP, LINE, TITLE, AXIS = 24, 190, 230, 46, 18, 22, 30, 24
SCALE, DRAW_SCALE = 2, 4

INK, FAINT, GRID, BAND = "#111827", "#6b7280", "#e2e6ec", "#f6f7f9"
COLORS = {"auto": "#2563eb", "einsum": "#111827", "peer/": "#d97706", "attention/": "#059669", "": "#64748b"}

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


@dataclasses.dataclass
class LogAxis:
    """A logarithmic axis from `left` to `right`."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float], left: float, right: float) -> "LogAxis":
        low, high = min(values), max(values)
        middle = math.sqrt(low * high)
        return cls(left, right, min(low / 1.3, middle / 2), max(high * 1.3, middle * 2))

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.left + share * (self.right - self.left)

    def ticks(self) -> list[float]:
        """Returns at most five ticks if possible: powers of ten, with multiples if there are few."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            ticks = [step * 10.0**decade for decade in decades for step in steps]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) <= 5:
                break
        return ticks


class _Canvas:
    """An image to draw on, in units."""

    def __init__(self, width: float, height: float):
        self.size = (round(width * SCALE), round(height * SCALE))
        self._image = Image.new("RGB", (round(width * DRAW_SCALE), round(height * DRAW_SCALE)), "white")
        self._draw = ImageDraw.Draw(self._image)

    def line(self, x: float, y: float, x2: float, y2: float, color: str, width: float = 1) -> None:
        ends = (x * DRAW_SCALE, y * DRAW_SCALE, x2 * DRAW_SCALE, y2 * DRAW_SCALE)
        self._draw.line(ends, color, max(1, round(width * DRAW_SCALE)))

    def area(self, x: float, y: float, x2: float, y2: float, color: str) -> None:
        self._draw.rectangle((x * DRAW_SCALE, y * DRAW_SCALE, x2 * DRAW_SCALE, y2 * DRAW_SCALE), color)

    def dot(self, x: float, y: float, color: str, full: bool) -> None:
        r = 4.2
        box = ((x - r) * DRAW_SCALE, (y - r) * DRAW_SCALE, (x + r) * DRAW_SCALE, (y + r) * DRAW_SCALE)
        self._draw.ellipse(box, color if full else "white", color, round(1.5 * DRAW_SCALE))

    def text(
        self, x: float, y: float, text: str, size: float = 12, color: str = INK, anchor: str = "lm"
    ) -> None:
        font = ImageFont.load_default(size * DRAW_SCALE)
        self._draw.text((x * DRAW_SCALE, y * DRAW_SCALE), text, color, font, anchor=anchor)

    def png(self) -> bytes:
        file = io.BytesIO()
        self._image.resize(self.size, Image.Resampling.LANCZOS).save(file, "PNG", optimize=True)
        return file.getvalue()


def _plot(rows: Sequence[Measurement], value: Value, title: str, footer: str) -> bytes:
    maps = list(dict.fromkeys(row.case.map for row in rows))
    blocks = _blocks(rows)
    top = float(MARGIN + 2 * TITLE + 20)
    height = top + MARGIN + sum(TITLE + LINE * len(_names(block)) + AXIS + GAP for block in blocks)
    width = 2 * MARGIN + NAMES + len(maps) * (PANEL + RATIO + GAP)
    canvas = _Canvas(max(width, 760), height)
    canvas.text(MARGIN, MARGIN + 8, title, 17)
    _draw_legend(canvas, rows)
    for column, name in enumerate(maps):
        case = next(row.case for row in rows if row.case.map == name)
        label = f"{case.height}x{case.width}, d={case.channels}, b={case.batch}"
        canvas.text(_left(column), MARGIN + 2 * TITLE + 8, label, 14)
    for block in blocks:
        top = _draw_block(canvas, block, maps, value, top)
    canvas.text(MARGIN, height - MARGIN + 4, footer, 11, FAINT)
    return canvas.png()


def _blocks(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """Returns the rows per kind (position lambdas, layers) and scope."""
    blocks: dict[tuple[bool, str], list[Measurement]] = {}
    for row in rows:
        blocks.setdefault((row.contender.startswith("position/"), row.case.scope_name), []).append(row)
    return list(blocks.values())


def _names(rows: Sequence[Measurement]) -> list[str]:
    return list(dict.fromkeys(row.contender for row in rows))


def _left(column: int) -> float:
    return MARGIN + NAMES + column * (PANEL + RATIO + GAP)


def _draw_legend(canvas: _Canvas, rows: Sequence[Measurement]) -> None:
    """Draws the legend of dots and numbers."""
    passes = {row.case.pass_name for row in rows}
    x, y = float(MARGIN + 5), float(MARGIN + TITLE + 4)
    for name, text in (("both", "forward + backward"), ("forward", "forward")):
        if name in passes:
            canvas.dot(x, y, COLORS[""], name == "both")
            canvas.text(x + 10, y, text, 12, FAINT)
            x += 150 if name == "both" else 80
    shown = "forward + backward" if "both" in passes else "forward"
    text = f"Logarithmic scales. Right: reference / contender ({shown}); higher is better."
    canvas.text(x, y, text, 12, FAINT)


def _draw_block(
    canvas: _Canvas, rows: Sequence[Measurement], maps: Sequence[str], value: Value, top: float
) -> float:
    """Draws the panels of a kind and scope, one per map, and returns their bottom."""
    names = _names(rows)
    kind = "Position lambda" if names[0].startswith("position/") else "Layer"
    canvas.text(MARGIN, top + TITLE / 2, f"{kind}, scope {rows[0].case.scope_name}", 14)
    top += TITLE
    for index, name in enumerate(names):
        y = top + LINE * (index + 0.5)
        if index % 2 == 0:
            canvas.area(MARGIN, y - LINE / 2, _left(len(maps)) - GAP, y + LINE / 2, BAND)
        canvas.text(MARGIN + 4, y, name, 12, _color(name))
    for column, map_name in enumerate(maps):
        panel = [row for row in rows if row.case.map == map_name]
        _draw_panel(canvas, panel, names, value, _left(column), top)
    return top + LINE * len(names) + AXIS + GAP


def _draw_panel(
    canvas: _Canvas, rows: Sequence[Measurement], names: Sequence[str], value: Value, left: float, top: float
) -> None:
    values = [found for row in rows if (found := value(row))]
    if not values:
        return
    if value is Measurement.milliseconds:
        values += [Measurement.milliseconds(row, end) or 0.0 for row in rows if row.seconds for end in (0, 1)]
    axis = LogAxis.over(values, left, left + PANEL)
    bottom = top + LINE * len(names)
    for tick in axis.ticks():
        x = axis.place(tick)
        canvas.line(x, top, x, bottom, GRID)
        canvas.text(x, bottom + 10, f"{tick:g}", 11, FAINT, "mm")
    last = max(row.case.backward for row in rows)
    for index, name in enumerate(names):
        y = top + LINE * (index + 0.5)
        own = [row for row in rows if row.contender == name]
        for row in own:
            _draw_row(canvas, axis, row, value, y)
        ratio = next((row.advantage(value) for row in own if row.case.backward == last), None)
        text = "none" if ratio is None else f"{number(ratio, 3)}x"
        canvas.text(left + PANEL + RATIO, y, text, 12, FAINT if ratio is None else _color(name), "rm")


def _draw_row(canvas: _Canvas, axis: LogAxis, row: Measurement, value: Value, y: float) -> None:
    middle = value(row)
    if not middle:
        return
    color = _color(row.contender)
    if value is Measurement.milliseconds:
        least, most = (axis.place(row.milliseconds(end) or middle) for end in (0, 1))
        canvas.line(least, y, most, y, color, 1.5)
    canvas.dot(axis.place(middle), y, color, row.case.backward)


def _color(name: str) -> str:
    return next(color for part, color in COLORS.items() if part in name)
