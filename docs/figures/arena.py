# SPDX-License-Identifier: Apache-2.0
"""Plots of the arena of operators, of docs/results/arena.csv."""

import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
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
    drawing, panels = new_figure(4 * len(tasks) + 2, 3.6, len(tasks))
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
        axes.set_xlabel("steps")
        axes.set_ylim(0, 102)
    panels[0].set_ylabel("accuracy on validation data (%)")
    _legend(panels[-1])
    return render(
        drawing, "Validation accuracy of the operators over the steps of training"
    )


def arena_sizes() -> str:
    """Plots the accuracy over parameters, key depth and pairs, of the series that have run."""
    shown = {key: lines for key in SERIES if (lines := _series(*key))}
    drawing, panels = new_figure(4 * len(shown) + 2, 3.6, len(shown))
    for axes, ((task, name), lines) in zip(panels, shown.items(), strict=True):
        for operator, points in lines.items():
            _line(axes, operator, *zip(*sorted(points), strict=True), marker="o")
        axes.set_title(summary.title(task).partition(",")[0], loc="left")
        axes.set_xlabel(SERIES[task, name])
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            sorted({value for points in lines.values() for value, _ in points})
        )
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 102)
    panels[0].set_ylabel("accuracy (%)")
    _legend(panels[-1])
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


def _legend(axes: Axes) -> None:
    """Names all operators beside the last panel."""
    for operator, row in OPERATORS.items():
        _line(axes, operator, [], [], label=row.title)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=10)


PLOTS = (
    *([arena_results, arena_steps] if summary.searched(ROWS) else []),
    *([arena_sizes] if any(_series(*key) for key in SERIES) else []),
)
