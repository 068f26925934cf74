# SPDX-License-Identifier: Apache-2.0
"""Plots of the study on Fashion-MNIST, of docs/results/fashion.csv."""

from matplotlib.axes import Axes
from plots import name_rows, new_figure, read, render
from svg import LIGHT

from experiments.fashion import summary
from experiments.fashion.contenders import STUDIES

TITLES = {
    "networks": "all pictures: accuracy (%)",
    "mistakes": "a fifth of them: accuracy minus the lambda layer's (points)",
}


ROWS = read("fashion.csv")


def fashion_results() -> str:
    """Plots accuracies of the networks, and what mistakes cost, with intervals beside the predictions."""
    figure, panels = new_figure(6.4, 8, 1, 2)
    for axes, (study, title) in zip(panels, TITLES.items(), strict=True):
        contenders = [
            name
            for name in STUDIES[study]
            if study == "networks" or name != summary.REFERENCES[study]
        ]
        for number, contender in enumerate(contenders):
            _draw(axes, number, study, contender)
        axes.set_title(title, fontweight="bold", fontsize=10, loc="left")
        name_rows(axes, contenders)
    panels[1].axvline(0, color=LIGHT["faint"], linewidth=0.8)
    return render(
        figure, "Accuracy on Fashion-MNIST by operator and by mistake, and predictions"
    )


def _draw(axes: Axes, number: int, study: str, contender: str) -> None:
    expected = summary.predictions(study).get(contender)
    if expected is not None:
        axes.hlines(
            number,
            expected.lowest,
            expected.highest,
            LIGHT["line"],
            linewidth=7,
            zorder=1,
        )
    found = summary.measured(ROWS, study, contender)
    if found is not None:
        mean, half = found
        color = LIGHT["blue" if "lambda" in contender else "faint"]
        axes.errorbar(mean, number, xerr=half, fmt="o", color=color, markersize=5)


PLOTS = [fashion_results]
