# SPDX-License-Identifier: Apache-2.0
"""Results: tables of the files in docs/results, which the commands on the pages wrote."""

import json
from collections.abc import Sequence

from rounding import three_digits

from benchmarks.interleaved.cases import MODEL_PEERS
from benchmarks.papers.sizes import TABLES
from generate.pages import RESULTS, read_csv, table
from lambdanet.models.names import info, list_models, render_table

TABLE_8 = "![Parameters of the rows of Table 8, as printed and in lambdanet](../figures/table_8.svg)\n\n"
PASSES = {"both": "forward and backward", "forward": "forward"}


def paper_tables() -> str:
    """Returns a section per table of the papers."""
    rows = read_csv("tables.csv")
    parts = []
    for number in dict.fromkeys(row["table"] for row in rows):
        own = [{**row, "table": ""} for row in rows if row["table"] == number]
        plot = TABLE_8 if number == "8" else ""
        text = _plain(own, rounded=("FLOPs (G), ours", "memory (GiB), ours"))
        parts.append(f"## Table {number}: {TABLES[number].title}\n\n{plot}{text}")
    return "\n".join(parts)


def layers() -> str:
    """Returns a table per scope and pass of the benchmark of layers."""
    rows = read_csv("layers.csv")
    parts = [_machine(rows[0])]
    for scope, pass_name in dict.fromkeys((row["scope"], row["pass"]) for row in rows):
        own = [row for row in rows if (row["scope"], row["pass"]) == (scope, pass_name)]
        title = (
            "Layers that have their own scope" if scope == "own" else f"Scope {scope}"
        )
        parts.append(f"**{title}, {PASSES[pass_name]}**\n\n{_by_map(own)}")
    return "\n\n".join(parts)


def convolutions() -> str:
    """Returns the times of the convolution and of `auto` by map and pass, with scope 23."""
    contenders = ("position/conv", "position/auto")
    rows = [
        row
        for row in read_csv("layers.csv")
        if row["contender"] in contenders and row["scope"] == "23"
    ]
    parts = [
        (title, [row for row in rows if row["pass"] == name])
        for name, title in PASSES.items()
    ]
    return "\n\n".join(
        f"**{title.capitalize()}**\n\n{_by_map(own)}" for title, own in parts
    )


def _by_map(rows: Sequence[dict[str, str]]) -> str:
    """Returns a table of median times with a row per contender and a column per map."""
    title = "{height}x{width}, d={channels}, b={batch}".format_map
    maps = list(dict.fromkeys(map(title, rows)))
    times = {(row["contender"], title(row)): row["ms_median"] for row in rows}
    names = dict.fromkeys(row["contender"] for row in rows)
    cells = [
        [f"`{name}`", *(three_digits(times.get((name, size)) or "-") for size in maps)]
        for name in names
    ]
    return table(["milliseconds", *maps], cells)


def models() -> str:
    """Returns the table of the benchmark of models."""
    rows = read_csv("models.csv")
    shown = (
        "model",
        "image_size",
        "ms_median",
        "images_per_second",
        "peak_mib",
    )
    return f"{_machine(rows[0])}\n\n{_plain(rows, shown, ('ms_median', 'images_per_second', 'peak_mib'))}"


def timm() -> str:
    """Returns the times of networks beside those of timm, in a table per machine."""
    machines = sorted(folder.name for folder in (RESULTS / "timm").glob("*/"))
    return "\n\n".join(map(_beside_timm, machines))


def _beside_timm(machine: str) -> str:
    files = sorted((RESULTS / "timm" / machine).glob("*/models.csv"))
    rows = [row for file in files for row in read_csv(str(file.relative_to(RESULTS)))]
    times = {
        (row["model"], row["batch"], row["pass"]): row["ms_median"] for row in rows
    }
    cells = []
    for name, batch, pass_name in times:
        if "/" in name:
            continue
        ours = times[name, batch, pass_name]
        theirs = [times[f"{peer}/{name}", batch, pass_name] for peer in MODEL_PEERS]
        ratios = [
            f"{float(time) / float(ours):.2f}" if time else "-" for time in theirs
        ]
        cells.append(
            [
                name,
                batch,
                pass_name,
                *(three_digits(time or "-") for time in (ours, *theirs)),
                *ratios,
            ]
        )
    header = [
        "network",
        "images",
        "pass",
        "ms",
        "timm, ms",
        "timm compiled, ms",
        "timm / ours",
    ]
    peer = next(row["library"] for row in rows if row["model"].startswith("timm/"))
    return f"{_machine(rows[0]).removesuffix('.')}, {peer}.\n\n{table([*header, 'compiled / ours'], cells)}"


def _machine(row: dict[str, str]) -> str:
    """Returns a sentence on the machine of a row of a benchmark."""
    return (
        f"Measured on {row['cpu']} with {row['cores']} cores, load {row['load_before']}, "
        f"{row['dtype']}, TensorFlow {row['tensorflow']}."
    )


def tpu() -> str:
    """Returns the estimates of the TPU compiler."""
    rows = read_csv("tpu.csv")
    return _plain(rows, rounded=[name for name in rows[0] if "(" in name])


def tpu_of_both_backends() -> str:
    """Returns the estimates of steps on TensorFlow and JAX."""
    reports = [
        json.loads(file.read_text())
        for file in sorted((RESULTS / "tpu_of_both_backends").iterdir())
    ]
    rows = [
        [
            report["name"],
            report["topology"],
            str(report["batch_per_core"]),
            three_digits(1e3 * report["seconds"]),
            three_digits(report["hbm_bytes"]["needed"] / 2**30),
            three_digits(report["bytes_moved"] / 1e9),
            str(report["collectives"].get("all-reduce", "-")),
        ]
        for report in sorted(
            reports, key=lambda report: (report["flops"], report["topology"])
        )
    ]
    header = [
        "step",
        "topology",
        "images per core",
        "ms",
        "HBM (GiB)",
        "HBM traffic (GB)",
        "all-reduces",
    ]
    return table(header, rows)


def libraries() -> str:
    """Returns the comparison with other libraries, whose links lead from the top of the repository."""
    return _plain(read_csv("peers.csv")).replace("](", "](../../")


def installation() -> str:
    """Returns the sizes of the extras."""
    return _plain(read_csv("installation.csv"))


def pretrained() -> str:
    """Returns the published accuracies."""
    return render_table(
        list_models(pretrained=True), table_format="markdown", with_accuracy=True
    )


def pretrained_lambda() -> str:
    """Returns size, accuracy and latency of the networks with lambda layers that have weights."""
    rows = []
    for row in read_csv("models.csv"):
        name = row["model"]
        if name in list_models("lam*", pretrained=True):
            rows.append(
                {
                    "model": name,
                    "pixels": row["image_size"],
                    "parameters (M)": f"{float(row['parameters']) / 1e6:.1f}",
                    "ImageNet top-1 (%)": f"{info(name).weights[0].top1:.1f}",
                    "latency (ms)": row["ms_median"],
                }
            )
    return _plain(rows, rounded=["latency (ms)"])


def digits() -> str:
    """Returns the evaluation of the digits: its line, and the table of classes."""
    rates = ("precision", "recall", "f1")
    rows = [
        {
            name: f"{float(value):.3f}" if name in rates else value
            for name, value in row.items()
        }
        for row in read_csv("digits.csv")
    ]
    return f"{_printed('digits.txt')}\n\n{_plain(rows)}"


def segmentation() -> str:
    """Returns what the segmentation of drawn shapes printed."""
    return _printed("segmentation.txt")


def shapes() -> str:
    """Returns the COCO table of the shapes."""
    return _printed("shapes.txt")


def water() -> str:
    """Returns the IoU of land and water, by network and by the half that it was trained on."""
    keys = ("contender", "trained_on", "parameters")
    measures = ("iou_land", "iou_water", "mean_iou", "evaluate", "seconds")
    return _by_seeds("water.csv", keys, measures)


def keywords() -> str:
    """Returns the measures of keywords, by network."""
    measures = ("average_precision", "f1", "f1_at_half", "seconds")
    return _by_seeds("keywords.csv", ("contender", "parameters"), measures)


def _by_seeds(name: str, keys: Sequence[str], measures: Sequence[str]) -> str:
    """Returns a table of a file with means of runs that differ in the seed, and their extremes."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in read_csv(name):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    cells = []
    for key, rows in groups.items():
        spreads = [_spread([row[measure] for row in rows]) for measure in measures]
        cells.append([*key, str(len(rows)), *spreads])
    return table([*keys, "runs", *measures], cells)


def _spread(texts: Sequence[str]) -> str:
    """Returns the mean of numbers, and the lowest and the highest of several."""
    if "" in texts:
        return "-"
    numbers = [float(text) for text in texts]
    mean = f"{sum(numbers) / len(numbers):.3f}"
    if len(numbers) == 1:
        return mean
    return f"{mean} ({min(numbers):.3f} to {max(numbers):.3f})"


def _printed(name: str) -> str:
    text = (RESULTS / name).read_text(encoding="utf-8")
    return f"```text\n{text.rstrip()}\n```"


def _plain(
    rows: Sequence[dict[str, str]],
    shown: Sequence[str] = (),
    rounded: Sequence[str] = (),
) -> str:
    """Returns a table of some or all columns of a file, some of them rounded."""
    header = list(shown or rows[0])
    cells = [
        [three_digits(row[name]) if name in rounded else row[name] for name in header]
        for row in rows
    ]
    return table(header, cells)
