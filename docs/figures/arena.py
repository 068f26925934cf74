# SPDX-License-Identifier: Apache-2.0
"""Plots of the arena of operators, of docs/results/arena.csv."""

import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from plots import RESULTS, name_rows, new_figure, render
from svg import LIGHT

sys.path.append(str(Path(__file__).parents[2]))

from experiments.arena import plan, summary
from experiments.arena.operators import OPERATORS
from experiments.arena.settings import Setup
from experiments.arena.training import STEPS

STYLES = {  # of operators: color, style of the line
    "convolution": ("faint", "-"),
    "depthwise": ("faint", "--"),
    "squeeze_excite": ("faint", ":"),
    "local_attention": ("orange", "-"),
    "halo_attention": ("orange", "--"),
    "global_attention": ("purple", "-"),
    "linear_attention": ("purple", "--"),
    "lambda_content": ("green", "-"),
    "lambda_position": ("blue", "--"),
    "lambda_both": ("blue", "-"),
}
ROWS = plan.read_rows(RESULTS / "arena.csv")
MAX_PANELS = 4  # beside each other
WIDTH = 5.6  # inches: at 400 pixels, letters are as high as in text
SERIES = {
    ("pointer", "parameters"): "parameters",
    ("recall", "key_dim"): "key depth",
    ("recall", "pairs"): "pairs",
}


def arena_results() -> str:
    """Plots accuracies with their intervals beside the predictions, for the tasks that separate operators."""
    shown = summary.separating(ROWS)
    rows = math.ceil(len(shown) / MAX_PANELS)
    figure, panels = new_figure(
        1.9 * MAX_PANELS + 2, 3.4 * rows, MAX_PANELS, rows, sharey=True
    )
    expected = summary.predictions()
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes, task in zip(panels, shown, strict=False):
        for number, operator in enumerate(OPERATORS):
            setup = Setup(task, operator)
            if found := [
                100 * accuracy for accuracy in summary.accuracies(setup, ROWS).values()
            ]:
                mean, half = summary.interval(found)
                if setup in expected:
                    lowest, highest, _ = expected[setup]
                    axes.hlines(
                        number,
                        100 * lowest,
                        100 * highest,
                        LIGHT["line"],
                        linewidth=7,
                        zorder=1,
                    )
                style = {
                    "color": LIGHT[_style(operator)[0]],
                    "markersize": 5,
                    "linewidth": 1.6,
                }
                axes.errorbar(mean, number, xerr=half, fmt="o", **style)
        axes.set_title(summary.title(task), fontweight="bold", fontsize=10, loc="left")
        axes.set_xlim(-4, 104)
        axes.set_xticks([0, 50, 100])
    name_rows(panels[0], (operator.title for operator in OPERATORS.values()))
    panels[-MAX_PANELS].set_xlabel("accuracy (%)", loc="left")
    return render(
        figure, "Accuracy of ten operators on controlled tasks, and what was predicted"
    )


def arena_steps() -> str:
    """Plots the validation accuracy of the operators over the steps, on the first tasks of the plan."""
    tasks = summary.searched(ROWS)[:MAX_PANELS]
    drawing, panels = new_figure(WIDTH, 6.6, 2, 2)
    for axes, task in zip(panels, tasks, strict=True):
        for operator in OPERATORS:
            rows = plan.seeds_done(Setup(task, operator), ROWS)
            if curves := [
                [100 * float(part) for part in row["validation_curve"].split()]
                for row in rows
            ]:
                mean = np.mean(curves, axis=0)
                _line(axes, operator, STEPS * np.arange(1, len(mean) + 1), mean)
        axes.set_title(summary.title(task), fontweight="bold", fontsize=11, loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_ylim(0, 102)
    drawing.supxlabel("steps", fontsize=11)
    drawing.supylabel("accuracy on validation data (%)", fontsize=11)
    drawing.legend(*_lines(panels[0]), loc="outside upper left", ncols=2, fontsize=11)
    return render(
        drawing, "Validation accuracy of the operators over the steps of training"
    )


def arena_sizes() -> str:
    """Plots the accuracy over parameters, key depth and pairs, of the series that have run."""
    shown = {key: lines for key in SERIES if (lines := _series(*key))}
    drawing, panels = new_figure(WIDTH, 6, 2, 2)
    for axes, ((task, name), lines) in zip(panels, shown.items(), strict=False):
        for operator, points in lines.items():
            _line(axes, operator, *zip(*sorted(points), strict=True), marker="o")
        title = summary.title(task).partition(",")[0]
        axes.set_title(title, fontweight="bold", fontsize=11, loc="left")
        axes.set_xlabel(SERIES[task, name])
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            sorted({value for points in lines.values() for value, _ in points})
        )
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set_ylim(0, 102)
    drawing.supylabel("accuracy (%)", fontsize=11)
    panels[-1].set_axis_off()
    panels[-1].legend(*_lines(panels[-1]), loc="center left", fontsize=11)
    return render(
        drawing, "Accuracy of the operators over parameters, key depth and pairs"
    )


def _style(operator: str) -> tuple[str, str]:
    return STYLES.get(operator, ("ink", "-"))


def _series(task: str, name: str) -> dict[str, list[tuple[float, float]]]:
    """Returns the values and accuracies of a factor, by operator, where several have run."""
    lines = {}
    for factor in plan.FACTORS:
        if (factor.task, factor.name) == (task, name):
            means = [summary.mean(setup, ROWS) for setup in factor.setups()]
            pairs = zip(factor.values, means, strict=True)
            points = [
                (float(value or 0), 100 * mean)
                for value, mean in pairs
                if mean is not None
            ]
            if len(points) > 1:
                lines[factor.operator] = points
    return lines


def _line(
    axes: Axes, operator: str, x: object, y: object, marker: str = "", label: str = ""
) -> None:
    color, style = _style(operator)
    axes.plot(
        x,
        y,
        style,
        color=LIGHT[color],
        linewidth=1.6,
        marker=marker,
        markersize=3,
        label=label,
    )


def _lines(axes: Axes) -> tuple[list[Line2D], list[str]]:
    """Returns a line and the title of each operator, for a legend."""
    for operator, row in OPERATORS.items():
        _line(axes, operator, [], [], label=row.title)
    return axes.get_legend_handles_labels()


PLOTS = (
    *([arena_results, arena_steps] if summary.searched(ROWS) else []),
    *([arena_sizes] if any(_series(*key) for key in SERIES) else []),
)
