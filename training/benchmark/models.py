# SPDX-License-Identifier: Apache-2.0
"""`lambdanet benchmark models`: time, memory and size of models, in training and inference."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lambdanet import text_table
from lambdanet.errors import InputError, check_counts, check_known, invalid
from lambdanet.files import MARKED_PNG, writable_dir, write_output
from lambdanet.models import timm_networks, zoo
from lambdanet.models.names import ModelInfo
from lambdanet.training.benchmark import model_contenders, results
from lambdanet.training.benchmark.cases import DTYPES, MODEL_PASSES, MODEL_PEERS, ModelCase
from lambdanet.training.benchmark.comparison import Comparison
from lambdanet.training.benchmark.layers import budget, interpreter
from lambdanet.training.benchmark.model_contenders import Network
from lambdanet.training.benchmark.report import number, png, set_log_scale
from lambdanet.training.benchmark.results import Machine, Measurement, ran_on

FIRST_COLOR, OWN_COLOR = "#111827", "#2563eb"
COLORS = {"timm": "#ea580c", "timm_compiled": "#16a34a"}  # of other libraries
TITLES = {"train": "training step", "infer": "inference"}


def benchmark_models(
    models: Sequence[str],
    passes: Sequence[str] = ("train", "infer"),
    batch_size: int = 32,
    repeats: int = 7,
    max_seconds: float = 60.0,
    dtype: str = "float32",
    threads: int | None = None,
    peers: bool = False,
    peers_python: str | None = None,
    out: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Measures models relative to the first of them, like the speed columns of the papers' tables.

    Inference is in the form of `lambdanet.for_inference`. Each model runs in its own process, and they take
    turns, so that a slowdown of the machine affects all of them. All models are in memory at the same time.
    Prints a table per pass.

    Args:
      models: names of models in the zoo, optionally with options and a size: "resnet_50_llll:key_dim=8@160".
      passes: "train" (forward, backward, SGD), "infer", or both.
      batch_size: the batch size.
      repeats: the number of turns per model.
      max_seconds: the time limit of a model's turns in a pass; a slow model gets fewer turns.
      dtype: "float32", or "bfloat16" or "float16" for mixed precision.
      threads: the number of threads per process; default: the number of cores.
      peers: whether to measure timm's networks of the same names too, in PyTorch on the CPU, in eager mode
        ("timm/NAME") and compiled by `torch.compile` ("timm_compiled/NAME"). Compiling takes minutes.
      peers_python: the Python interpreter that has timm; default: this one.
      out: the folder for `models.csv` and `models.png`; default: none.

    Returns:
      The rows of the CSV file, without the description of the machine.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> rows = benchmark_models(["resnet_50", "resnet_50_llll"], batch_size=8)
    """
    if not models:
        raise InputError("models must have at least one name, such as resnet_50 resnet_50_llll")
    for name in passes:
        check_known("pass", name, MODEL_PASSES)
    check_known("dtype", dtype, DTYPES)
    check_counts(batch_size=batch_size)
    limits = budget(repeats, max_seconds, threads)
    files = {"models.csv": b"model,parameters,flops,", "models.png": MARKED_PNG}
    folder = None if out is None else writable_dir(Path(out).expanduser(), files)
    networks = [Network.parse(text) for text in dict.fromkeys(models)]
    infos = {f"{model_contenders.PREFIX}{network.text}": network.info() for network in networks}
    pythons = dict.fromkeys(infos, sys.executable)
    if peers:
        infos |= (others := _peers(networks))
        pythons |= dict.fromkeys(others, interpreter(peers_python))
    about = results.announce(dtype, limits.threads)
    rows: list[dict[str, Any]] = []
    names = list(infos)
    with Comparison(pythons, limits) as comparison:
        for name in dict.fromkeys(passes):
            case = ModelCase(batch_size, name == "train", dtype)
            found = comparison.run(case, names, names[0])
            rows += [_columns(row, infos[row.contender]) for row in found]
            print(f"\n{table(rows[-len(found) :])}", flush=True)
            if folder:
                write_output(folder / "models.csv", text_table.to_csv([row | about for row in rows]))
    if folder and any(row["images_per_second"] for row in rows):
        write_output(folder / "models.png", draw(rows, about))
        print(f"plotted in {folder / 'models.png'}")
    return rows


def _peers(networks: Sequence[Network]) -> dict[str, ModelInfo]:
    """Returns timm's contenders and the sizes of their networks, by the models of the same names."""
    same = [network.name for network in networks if network.text in timm_networks.MODELS]
    if not same:
        accepted = f"one of {', '.join(timm_networks.MODELS)}, without options, with --peers"
        raise invalid("a model", accepted, ", ".join(network.text for network in networks))
    return {f"{prefix}/{name}": zoo.model_info(name) for name in same for prefix in MODEL_PEERS}


def _columns(row: Measurement, info: ModelInfo) -> dict[str, Any]:
    """Returns the row of the CSV file."""
    median = row.milliseconds()
    return {
        "model": row.contender.removeprefix(model_contenders.PREFIX),
        "parameters": info.params,
        "flops": info.flops,
        "image_size": info.input_size,
        "images_per_second": results.round_digits(1000 * row.case.batch / median if median else None),
        **row.columns("first"),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a pass, with a line per model."""
    first = rows[0]
    header = ["", "params M", "pixels", "ms", "quartiles", "images/s", "x", "MiB", "share"]
    lines = [
        [
            row["model"],
            f"{row['parameters'] / 1e6:.2f}",
            str(row["image_size"]),
            number(row["ms_median"]),
            f"{number(row['ms_quartile_1'])}-{number(row['ms_quartile_3'])}",
            number(row["images_per_second"]),
            number(row["times_as_fast_as_first"], 3),
            number(row["peak_mib"]),
            number(row["peak_as_share_of_first"], 3),
        ]
        for row in rows
    ]
    title = f"{TITLES[first['pass']]}, {first['batch']} images; x and share relative to {first['model']}\n"
    notes = [f"\n  {row['model']}: {row['note']}" for row in rows if row["note"]]
    return title + text_table.render(header, lines).rstrip() + "".join(notes)


def draw(rows: Sequence[Mapping[str, Any]], about: Machine) -> bytes:
    """Plots speed over size, with a panel per pass; returns a PNG file."""
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    figure = Figure(figsize=(8.5 * len(passes), 6.5), dpi=110, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(passes), squeeze=False)[0], passes, strict=True):
        shown = [row for row in rows if row["pass"] == name and row["images_per_second"]]
        sizes = [row["parameters"] for row in shown]
        for index, row in enumerate(shown):
            x, y = row["parameters"] / 1e6, row["images_per_second"]
            first = row["model"] == rows[0]["model"]
            color = COLORS.get(row["model"].partition("/")[0], OWN_COLOR)
            axes.scatter(x, y, s=60, color=FIRST_COLOR if first else color, zorder=3)
            text = f"{row['model']} ({number(row['times_as_fast_as_first'], 3)}x)"
            right = row["parameters"] ** 2 > min(sizes) * max(sizes)  # so the label stays in the panel
            place = {"xytext": (-8 if right else 8, 6 if index % 2 else -12), "textcoords": "offset points"}
            axes.annotate(text, (x, y), ha="right" if right else "left", **place)
        axes.set(xlabel="parameters, millions", ylabel="images per second")
        axes.set_title(f"{TITLES[name]}, batch size {rows[0]['batch']}")
        axes.margins(x=0.35, y=0.2)
        set_log_scale(axes, "x", "y")
    return png(figure, f"{ran_on([row['device'] for row in rows], about)}, {rows[0]['dtype']}")
