# SPDX-License-Identifier: Apache-2.0
"""Plots the files in docs/results, and the models.

    python docs/figures/plots.py [FOLDER]

writes the plots, by default beside this file.
"""

import csv
import io
import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import matplotlib
from colors import DARK, LIGHT
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from lambdanet.models import names

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))

from rounding import three_digits  # noqa: E402

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
RESULTS = FOLDER.parent / "results"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lambdanet",  # the ids in a file are the same each time
    "font.size": 11,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["line"],
    "axes.facecolor": LIGHT["ground"],
    "figure.facecolor": LIGHT["ground"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.6,
    "xtick.color": LIGHT["line"],
    "ytick.color": LIGHT["line"],
    "xtick.labelcolor": LIGHT["faint"],
    "ytick.labelcolor": LIGHT["ink"],
    "legend.frameon": False,
    "savefig.facecolor": LIGHT["ground"],
}
IN_THE_DARK = "".join(
    f'[style*="{use}: {light}"]{{{use}:{DARK[name]}!important}}'
    for name, light in LIGHT.items()
    for use in ("fill", "stroke")
)
KINDS = {
    "lambda layers": "blue",
    "halo attention": "orange",
    "other attention": "purple",
    "convolutions": "faint",
}
FORMS = {  # of position lambdas: color, marker
    "figure_3": ("faint", "x"),
    "einsum": ("green", "o"),
    "query_first": ("green", "^"),
    "conv": ("purple", "o"),
    "depthwise_conv": ("purple", "^"),
    "blocked": ("orange", "o"),
    "blocked_query_first": ("orange", "^"),
    "auto": ("blue", "o"),
}
LAYERS = {  # contenders: name, color
    "layer/auto": ("lambdanet, auto", "blue"),
    "layer/einsum": ("lambdanet, the paper's einsum", "green"),
    "peer/lucidrains": ("lucidrains, PyTorch", "orange"),
    "peer/timm": ("timm, PyTorch", "purple"),
}
# Of names that would be on each other, in points.
OFFSETS = {
    "halonet50ts": (7, 2),
    "lamhalobotnet50ts_256": (7, -9),
    "lambda_resnet50ts": (-7, -3),
    "haloregnetz_b": (-2, -13),
    "botnet26t_256": (-7, -3),
    "halonet26t": (-6, -9),
    "lambda_resnet26rpt_256": (5, -11),
}
LEFT = ("lambda_resnet50ts", "haloregnetz_b", "botnet26t_256", "halonet26t")


def render(figure: Figure, title: str) -> str:
    """Returns the file of a figure, with a title for those who cannot see it and colors for dark pages."""
    text = io.StringIO()
    metadata = {
        "Title": title,
        "Date": None,
        "Creator": None,
        "Format": None,
        "Type": None,
    }
    figure.savefig(text, format="svg", bbox_inches="tight", metadata=metadata)
    body = text.getvalue()[text.getvalue().index("<svg") :]
    body = re.sub(
        r"font: ([\d.]+px) [^;\"]*", lambda found: f"font: {found[1]} {FONT}", body
    )
    body = re.sub(r"(\d\.\d\d)\d+", r"\1", body)
    style = f"<style>@media (prefers-color-scheme:dark){{{IN_THE_DARK}}}</style>"
    return re.sub(r"(<svg[^>]*>)", lambda found: f"{found[1]}\n {style}", body, count=1)


def read(name: str) -> list[dict[str, str]]:
    """Returns the rows of a file in docs/results."""
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """Returns a figure of a size in inches, of 96 pixels each, and its axes."""
    figure = Figure((width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _logarithmic(axes: Axes, *which: str) -> None:
    for name in which:
        getattr(axes, f"set_{name}scale")("log")
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axis.set_minor_formatter(NullFormatter())


def name_rows(axes: Axes, labels: Iterable[str]) -> None:
    """Names the rows of a plot, the first at the top."""
    labels = list(labels)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _map_name(row: dict[str, str]) -> str:
    """Returns the map of a row of layers.csv, with its channels and its batch."""
    return f"{row['height']}×{row['width']}\nd={row['channels']}\nb={row['batch']}"


def speed() -> str:
    """Plots the time and memory of whole lambda layers on five maps."""
    rows = [
        row
        for row in read("layers.csv")
        if row["contender"] in LAYERS and row["pass"] == "both"
    ]
    maps = list(dict.fromkeys(_map_name(row) for row in rows))
    figure, panels = new_figure(8, 5.4, 2)
    titles = {"ms_median": "time (ms)", "peak_mib": "memory (MiB)"}
    for axes, (column, title) in zip(panels, titles.items(), strict=True):
        for name, color in LAYERS.values():
            axes.plot([], [], "o", color=LIGHT[color], label=name)
        for row in rows:
            number = list(LAYERS).index(row["contender"])
            color = LAYERS[row["contender"]][1]
            value = float(row[column] or "nan")
            place = maps.index(_map_name(row)) + 0.22 * (number - 1.5)
            axes.plot(value, place, "o", color=LIGHT[color], markersize=7)
            axes.annotate(
                three_digits(value),
                (value, place),
                (8, -4),
                textcoords="offset points",
                weight="bold" if number == 0 else "normal",
            )
        _logarithmic(axes, "x")
        axes.margins(x=0.28)
        axes.grid(axis="y", visible=False)
        axes.set_title(title, fontweight="bold", loc="left")
        name_rows(axes, maps)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper center", ncols=2
    )
    about = rows[0]
    panels[0].set_xlabel(
        f"{about['cpu']}, {about['cores']} cores, float32, scope 23", loc="left"
    )
    return render(
        figure,
        "Time and memory of one forward and backward pass of lambda layers on five maps",
    )


def position_lambdas() -> str:
    """Plots the time and memory of the forms of position lambdas on five maps."""
    rows = [
        row for row in read("layers.csv") if row["contender"].startswith("position/")
    ]
    figure, panels = new_figure(10, 7, 2, 2)
    passes = {"forward": "forward", "both": "forward and backward"}
    measures = {"ms_median": "milliseconds", "peak_mib": "MiB at the peak"}
    shown = itertools.product(measures.items(), passes.items())
    for axes, ((column, unit), (pass_name, title)) in zip(panels, shown, strict=True):
        for form, (color, marker) in FORMS.items():
            own = [
                row
                for row in rows
                if (row["contender"], row["pass"]) == (f"position/{form}", pass_name)
            ]
            maps = [_map_name(row) for row in own]
            ring = {"markersize": 12, "markerfacecolor": "none"}
            options = ring if form == "auto" else {"markersize": 5}
            values = [float(row[column] or "nan") for row in own]
            # No lines: the maps differ in channels and batches, too, and have no order.
            axes.plot(maps, values, marker, color=LIGHT[color], label=form, **options)
        axes.set_title(title, fontweight="bold", fontsize=11, loc="left")
        axes.set_ylabel(unit)
        axes.tick_params(axis="x", labelsize=8)
        _logarithmic(axes, "y")
    panels[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=10)
    return render(
        figure, "Time and memory of the forms of position lambdas on five maps"
    )


def model_speed() -> str:
    """Plots the images per second of models on a CPU."""
    speeds = {
        f"{row['model']}, {row['image_size']}": float(row["images_per_second"])
        for row in read("models.csv")
    }
    return _draw_speeds(
        speeds,
        5.6,
        "images per second, inference with one image per call; beside the names: pixels",
        "Images per second of inference on a CPU, of 21 networks",
    )


def tpu_speed() -> str:
    """Plots the images per second of training on a core, as the TPU compiler estimates them."""
    speeds = {}
    for row in read("tpu.csv"):
        seconds = float(row["step on v5e (ms)"]) / 1000
        name = f"{row['model']}, {row['pixels']}"
        speeds[name] = float(row["batch of a core"]) / seconds
    return _draw_speeds(
        speeds,
        4.2,
        "images per second and core in training, estimated; beside the names: pixels",
        "Images per second of a training step on a core of a v5e, estimated by the compiler",
    )


def _draw_speeds(
    speeds: dict[str, float], height: float, label: str, title: str
) -> str:
    """Plots images per second by networks and their pixels, such as "resnet_50, 224", the fastest first."""
    networks = sorted(speeds, key=lambda name: -speeds[name])
    values = [speeds[name] for name in networks]
    colors = [LIGHT[KINDS[_kind(name.partition(",")[0])]] for name in networks]
    figure, (axes,) = new_figure(8, height)
    bars = axes.barh(range(len(networks)), values, 0.7, color=colors)
    axes.bar_label(bars, [three_digits(x) for x in values], padding=3, fontsize=10)
    for kind, color in KINDS.items():
        if LIGHT[color] in colors:
            axes.barh(0, 0, color=LIGHT[color], label=kind)
    name_rows(axes, networks)
    axes.legend(loc="lower right")
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
    return render(figure, title)


def _kind(model: str) -> str:
    """Returns the layers that make a network special; lambda layers where it has several."""
    if "lam" in model or re.search("_[cl]{3}l$|_l[cl]{3}$", model):
        return "lambda layers"
    if "halo" in model:
        return "halo attention"
    return (
        "other attention"
        if re.search("botn|attention|augmented", model)
        else "convolutions"
    )


def printed_sizes() -> str:
    """Plots how far the parameters of the models are from those that the papers print."""
    rows = [
        row
        for row in read("tables.csv")
        if "-" not in (row["parameters (M), paper"], row["parameters (M), ours"])
    ]
    figure, (axes,) = new_figure(8, 4)
    points = [
        (float(row["parameters (M), paper"]), float(row["parameters (M), ours"]), row)
        for row in rows
    ]
    for verdict, color in {
        "equal": "blue",
        "within rounding": "green",
        "differs": "orange",
    }.items():
        own = [point for point in points if _verdict(point[2]) == verdict]
        differences = [100 * (ours / paper - 1) for paper, ours, _ in own]
        label = f"{verdict}: {len(own)}"
        axes.plot(
            [paper for paper, _, _ in own],
            differences,
            "o",
            color=LIGHT[color],
            label=label,
        )
        if verdict == "differs":
            for (paper, _, row), difference in zip(own, differences, strict=True):
                name = f"Table {row['table']}, {row['row'].removesuffix(' u=1')}"
                axes.annotate(
                    name,
                    (paper, difference),
                    (8, -4),
                    textcoords="offset points",
                    fontsize=9,
                )
    _logarithmic(axes, "x")
    axes.set_xlabel("parameters (M) as the papers print them")
    axes.set_ylabel("difference of ours (%)")
    axes.legend(loc="lower right")
    return render(
        figure,
        "Parameters of lambdanet's models beside those that the papers print, in percent",
    )


def _verdict(row: dict[str, str]) -> str:
    """Returns the verdict on the parameters; those on FLOPs alone leave them equal."""
    found = re.search(r"parameters: ([^;]+)", row["verdict"])
    return found[1] if found else "equal"


def table_8() -> str:
    """Plots the parameters of the rows of Table 8, the longest of the papers' tables."""
    # Without the baseline.
    rows = [row for row in read("tables.csv") if row["table"] == "8"][1:]
    figure, (axes,) = new_figure(8, 4.2)
    printed = [float(row["parameters (M), paper"]) for row in rows]
    ours = [float(row["parameters (M), ours"]) for row in rows]
    numbers = range(len(rows))
    axes.hlines(numbers, printed, ours, color=LIGHT["line"])
    options = {"markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.6}
    axes.plot(
        printed, numbers, "o", color=LIGHT["orange"], label="the paper", **options
    )
    axes.plot(ours, numbers, "o", color=LIGHT["blue"], markersize=6, label="ours")
    name_rows(axes, (row["row"] for row in rows))
    axes.legend()
    axes.set_xlabel("parameters (M)")
    return render(
        figure, "Parameters of the rows of Table 8, as printed and in lambdanet"
    )


def models() -> str:
    """Plots the parameters of all models but the tiny one against their FLOPs."""
    figure, (axes,) = new_figure(9, 5.4)
    for kind, color in KINDS.items():
        own = [
            name
            for name in names.list_models()
            if _kind(name) == kind and name != "lambda_resnet_tiny"
        ]
        axes.plot(*_sizes(own), "o", color=LIGHT[color], markersize=6, label=kind)
    options = {"markersize": 12, "markerfacecolor": "none", "markeredgewidth": 1.4}
    pretrained = _sizes(names.list_models(pretrained=True))
    axes.plot(
        *pretrained, "o", color=LIGHT["ink"], label="pretrained weights", **options
    )
    _logarithmic(axes, "x", "y")
    axes.set_xlabel("FLOPs (G) for an image of the size in the table")
    axes.set_ylabel("parameters (M)")
    axes.legend(loc="lower right")
    return render(
        figure, "Parameters of the models against their FLOPs, by their layers"
    )


def _sizes(models: Iterable[str]) -> tuple[list[float], list[float]]:
    """Returns the FLOPs in billions and the parameters in millions."""
    infos = [names.info(name) for name in models]
    return [info.flops / 1e9 for info in infos], [info.params / 1e6 for info in infos]


def accuracy() -> str:
    """Plots the published accuracies against the measured speed of inference."""
    speeds = {
        row["model"]: float(row["images_per_second"]) for row in read("models.csv")
    }
    figure, (axes,) = new_figure(8, 4.2)
    for name in names.list_models(pretrained=True):
        (weights,) = names.info(name).weights
        axes.plot(speeds[name], weights.top1, "o", color=LIGHT[KINDS[_kind(name)]])
        options = {
            "textcoords": "offset points",
            "fontsize": 9,
            "ha": "right" if name in LEFT else "left",
        }
        axes.annotate(
            name, (speeds[name], weights.top1), OFFSETS.get(name, (7, -3)), **options
        )
    for kind in list(KINDS)[:3]:
        axes.plot([], [], "o", color=LIGHT[KINDS[kind]], label=kind)
    axes.legend(loc="upper right")
    # For the names beside the points.
    axes.margins(x=0.25)
    axes.set_xlabel("images per second, inference on a CPU")
    axes.set_ylabel("top-1 on ImageNet (%), as published")
    return render(
        figure,
        "Accuracy on ImageNet against the speed on a CPU, of the pretrained models",
    )


PLOTS = (
    speed,
    position_lambdas,
    model_speed,
    tpu_speed,
    printed_sizes,
    table_8,
    models,
    accuracy,
)


def main(folder: Path) -> None:
    with matplotlib.rc_context(STYLE):
        for plot in PLOTS:
            path = folder / f"{plot.__name__}.svg"
            path.write_text(plot(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
