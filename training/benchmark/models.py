# SPDX-License-Identifier: Apache-2.0
"""`lambdanet benchmark models`: time, memory and size of whole models, in training and inference."""

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lambdanet.errors import InputError, check_counts, unknown
from lambdanet.files import writable_dir, write_output
from lambdanet.models.zoo import ModelInfo
from lambdanet.training.benchmark import machine, networks
from lambdanet.training.benchmark.cases import DTYPES
from lambdanet.training.benchmark.compare import Comparison
from lambdanet.training.benchmark.layers import announce, budget
from lambdanet.training.benchmark.networks import ModelCase, Network
from lambdanet.training.benchmark.report import number
from lambdanet.training.benchmark.results import Row, ran_on, rounded, write_csv

TITLES = {"train": "a step of training", "infer": "inference"}


def benchmark_models(
    models: Sequence[str],
    passes: Sequence[str] = ("train", "infer"),
    batch: int = 32,
    repeats: int = 7,
    max_seconds: float = 60.0,
    dtype: str = "float32",
    threads: int | None = None,
    out: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Measures models against the first of them, as the speed columns of the papers' tables do.

    Every model has a process of its own, and they take turns, so that a machine that becomes slower does so
    for all of them. All of them are in memory at the same time. Prints a table for each pass.

    Args:
      models: names of the zoo, each perhaps with options and a size: "resnet_50_llll:key_dim=8@160".
      passes: "train" (forward, backward, SGD), "infer", or both.
      batch: images at once.
      repeats: turns of each model.
      max_seconds: what the turns of a model may take in a pass; a slow one gets fewer.
      dtype: "float32", or "bfloat16" or "float16" for mixed precision.
      threads: of each process; default: as many as there are cores.
      out: folder for `models.csv` and `models.png`; default: none are written.

    Returns:
      The rows of the csv file, without the description of the machine.

    Raises:
      InputError: for arguments that are not as described.

    Example:
      >>> rows = benchmark_models(["resnet_50", "resnet_50_llll"], batch=8)
    """
    if not models:
        raise InputError("no models given; expected one or more, such as resnet_50 resnet_50_llll")
    for name in passes:
        if name not in networks.PASSES:
            raise unknown("pass", name, networks.PASSES)
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    check_counts(batch=batch)
    limits = budget(repeats, max_seconds, threads)
    folder = None if out is None else writable_dir(Path(out).expanduser())
    infos = {f"{networks.PREFIX}{text}": Network.parse(text).info() for text in dict.fromkeys(models)}
    about = machine.describe(limits.threads)
    announce(about, dtype)
    rows: list[dict[str, Any]] = []
    names = list(infos)
    with Comparison(dict.fromkeys(names, sys.executable), limits) as comparison:
        for name in dict.fromkeys(passes):
            case = ModelCase(batch, name == "train", dtype)
            found = comparison.run(case, names, names[0])
            rows += [_columns(row, infos[row.contender]) for row in found]
            print(f"\n{table(rows[-len(found) :])}", flush=True)
            if folder:
                write_csv(folder / "models.csv", rows, about)
    if folder and any(row["images_per_second"] for row in rows):
        write_output(folder / "models.png", draw(rows, about))
        print(f"drawn in {folder / 'models.png'}")
    return rows


def _columns(row: Row, info: ModelInfo) -> dict[str, Any]:
    """The row of the csv file."""
    median, own = row.milliseconds(), row.mebibytes()
    reference = row.reference.mebibytes() if row.reference else None
    return {
        "model": row.contender.removeprefix(networks.PREFIX),
        "parameters": info.params,
        "flops": info.flops,
        "image_size": info.input_size,
        "batch": row.case.batch,
        "dtype": row.case.dtype,
        "pass": row.case.pass_name,
        "repeats": len(row.seconds),
        "ms_median": rounded(median),
        "ms_quartile_1": rounded(row.milliseconds(0.25)),
        "ms_quartile_3": rounded(row.milliseconds(0.75)),
        "images_per_second": rounded(1000 * row.case.batch / median if median else None),
        "times_as_fast_as_first": rounded(row.speed()),
        "peak_mib": rounded(own),
        "peak_as_share_of_first": rounded(own / reference if own is not None and reference else None),
        "note": row.note,
        "library": row.library,
        "device": row.device,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a pass: a line for each model."""
    first = rows[0]
    width = max(len(first["pass"]) + 20, *(len(row["model"]) for row in rows)) + 2
    lines = [
        f"{TITLES[first['pass']]}, {first['batch']} images; x and share: to {first['model']}",
        f"{'':<{width}}{'params M':>9} {'pixels':>6} {'ms':>9} {'quartiles':^15} {'images/s':>9} {'x':>6}"
        f" {'MiB':>8} {'share':>6}",
    ]
    for row in rows:
        quartiles = f"{number(row['ms_quartile_1'])}-{number(row['ms_quartile_3'])}"
        lines.append(
            f"{row['model']:<{width}}{row['parameters'] / 1e6:>9.2f} {row['image_size']:>6} "
            f"{number(row['ms_median']):>9} {quartiles:^15} {number(row['images_per_second']):>9} "
            f"{number(row['times_as_fast_as_first'], 3):>6} {number(row['peak_mib']):>8} "
            f"{number(row['peak_as_share_of_first'], 3):>6}"
        )
        if row["note"]:
            lines.append(f"  {row['note']}")
    return "\n".join(lines)


def draw(rows: Sequence[Mapping[str, Any]], about: Mapping[str, str | float]) -> bytes:
    """Draws speed over size, a panel for each pass; returns a PNG file."""
    passes = list(dict.fromkeys(row["pass"] for row in rows))
    figure = Figure(figsize=(8.5 * len(passes), 6.5), dpi=110, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(passes), squeeze=False)[0], passes, strict=True):
        shown = [row for row in rows if row["pass"] == name and row["images_per_second"]]
        sizes = [row["parameters"] for row in shown]
        for index, row in enumerate(shown):
            x, y = row["parameters"] / 1e6, row["images_per_second"]
            first = row["model"] == rows[0]["model"]
            axes.scatter(x, y, s=60, color="#111827" if first else "#2563eb", zorder=3)
            text = f"{row['model']} ({number(row['times_as_fast_as_first'], 3)}x)"
            right = row["parameters"] ** 2 > min(sizes) * max(sizes)  # where the label would leave the panel
            place = {"xytext": (-8 if right else 8, 6 if index % 2 else -12), "textcoords": "offset points"}
            axes.annotate(text, (x, y), ha="right" if right else "left", **place)
        axes.set(xscale="log", yscale="log", xlabel="parameters, millions", ylabel="images a second")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{TITLES[name]}, batches of {rows[0]['batch']} images")
        axes.margins(x=0.35, y=0.2)
        axes.grid(True, which="both", color="#e2e6ec")
    figure.supxlabel(f"{ran_on(rows, about)}, {rows[0]['dtype']}", fontsize=9, color="#6b7280")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
