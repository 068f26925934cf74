# SPDX-License-Identifier: Apache-2.0
"""Time and memory of whole lambda layers, drawn from the csv that `python -m benchmarks.layers` writes."""

import csv
import math
from pathlib import Path

from rounding import three_digits
from svg import Drawing

RESULTS = Path(__file__).parents[1] / "results" / "layers.csv"
TITLE = "Time and memory of one forward and backward pass of lambda layers on five maps"
CONTENDERS = {
    "layer/auto": ("lambdanet, auto", "blue"),
    "layer/einsum": ("lambdanet, the paper's einsum", "green"),
    "peer/lucidrains": ("lucidrains, PyTorch", "orange"),
    "peer/timm": ("timm, PyTorch", "purple"),
}
PANELS = (("ms_median", "time in ms", 120), ("peak_mib", "memory in MiB", 570))
WIDTH, TOP, ROW, STEP = 400, 86, 82, 17


def draw() -> Drawing:
    """Returns the drawing."""
    with RESULTS.open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["contender"] in CONTENDERS and row["pass"] == "both"
        ]
    maps = list(
        dict.fromkeys(
            (row["height"], row["width"], row["channels"], row["batch"]) for row in rows
        )
    )
    bottom = TOP + ROW * len(maps)
    drawing = Drawing(1000, bottom + 58, TITLE)
    for number, (label, color) in enumerate(CONTENDERS.values()):
        x = (126, 300, 600, 800)[number]
        drawing.dot(x, 24, 6, color)
        drawing.text(x + 12, 29, label, "ink", 16)
    for number, (height, width, channels, batch) in enumerate(maps):
        y = TOP + ROW * (number + 0.5)
        drawing.text(14, y, f"*{height}×{width}*", "ink", 17)
        drawing.text(14, y + 20, f"d={channels}, b={batch}", "faint")
    for column, title, left in PANELS:
        values = {
            (
                maps.index(
                    (row["height"], row["width"], row["channels"], row["batch"])
                ),
                row["contender"],
            ): float(row[column])
            for row in rows
            if row[column]
        }
        _draw_panel(drawing, values, title, left, bottom)
    about = rows[0]
    drawing.text(
        120,
        bottom + 50,
        f"{about['cpu']}, threads: {about['threads']}, float32, scope 23",
        "faint",
    )
    return drawing


def _draw_panel(
    drawing: Drawing,
    values: dict[tuple[int, str], float],
    title: str,
    left: float,
    bottom: float,
) -> None:
    low, high = (
        math.log10(min(values.values()) / 1.5),
        math.log10(max(values.values()) * 3.5),
    )  # room for a label
    drawing.text(left, TOP - 16, f"*{title}*, logarithmic", "ink", 16)
    for power in range(math.ceil(low), math.floor(high) + 1):
        x = left + WIDTH * (power - low) / (high - low)
        drawing.line([(x, TOP), (x, bottom)], "line", 1)
        drawing.text(x, bottom + 18, f"{10**power:,}", "faint", 14, "middle")
    for (row, contender), value in values.items():
        x = left + WIDTH * (math.log10(value) - low) / (high - low)
        y = TOP + ROW * row + 17 + STEP * list(CONTENDERS).index(contender)
        drawing.line([(left, y), (x, y)], "line", 1)
        drawing.dot(x, y, 6, CONTENDERS[contender][1])
        own = contender == "layer/auto"
        label = three_digits(value)
        drawing.text(
            x + 11, y + 5, f"*{label}*" if own else label, "ink" if own else "faint", 15
        )
