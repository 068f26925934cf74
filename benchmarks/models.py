# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.models`: time, memory and size of models, in training and inference."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from benchmarks import program
from benchmarks.interleaved import model_contenders, results
from benchmarks.interleaved.cases import (
    DTYPES,
    MODEL_PASSES,
    MODEL_PEERS,
    ModelCase,
)
from benchmarks.interleaved.comparison import Budget, Comparison
from benchmarks.interleaved.model_contenders import Network
from benchmarks.interleaved.report import number
from benchmarks.interleaved.results import Measurement
from lambdanet.core import command_line, text_table
from lambdanet.core.commands import Overwrite
from lambdanet.core.errors import InputError, check_counts, check_known, invalid
from lambdanet.core.files import check_new, writable_dir, write_output
from lambdanet.models import timm_networks, zoo
from lambdanet.models.names import ModelInfo

TITLES = {"train": "training step", "infer": "inference"}
COLUMNS = {
    "ms": "ms_median",
    "quartile 1": "ms_quartile_1",
    "quartile 3": "ms_quartile_3",
    "images/s": "images_per_second",
    "x": "times_as_fast_as_first",
    "MiB": "peak_mib",
    "share": "peak_as_share_of_first",
}


def benchmark_models(
    models: Sequence[str],
    passes: Sequence[str] = ("train", "infer"),
    batch_size: int = 32,
    repeats: int = 7,
    max_seconds: float = 60.0,
    dtype: str = "float32",
    peers: bool = False,
    out: str | Path | None = None,
    overwrite: Annotated[Overwrite, "--out"] = False,
) -> list[dict[str, Any]]:
    """Measures models relative to the first of them, like the speed columns of the papers' tables.

    Inference is in the form of `lambdanet.for_inference`. Each model runs in its own process, and they take
    turns, so that a slowdown of the machine affects all of them. All models are in memory at the same time.
    Prints a table per pass.

    Args:
      models: names of models in the zoo, optionally with options and a size: "resnet_50_llll:key_dim=8@160";
        " with TF_ENABLE_ONEDNN_OPTS=1" at its end sets a variable of its process.
      passes: "train" (forward, backward, SGD), "infer", or both.
      batch_size: the number of images per step.
      repeats: the number of turns per model and pass.
      max_seconds: the time limit of a model's turns in a pass, as in `benchmark_layers`.
      dtype: "float32", "bfloat16" or "float16"; the latter two mean mixed precision.
      peers: whether to measure timm's networks of the same names too, in PyTorch, in eager mode
        ("timm/NAME") and compiled by `torch.compile` ("timm_compiled/NAME"). Compiling takes minutes.
      out: the folder for `models.csv`; default: none.
      overwrite: whether to replace this file.

    Returns:
      The rows of the CSV file, without the description of the machine.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> rows = benchmark_models(["resnet_50", "resnet_50_llll"], batch_size=8)
    """
    if not models:
        raise InputError(
            "models must have at least one name, such as resnet_50 resnet_50_llll"
        )
    for name in passes:
        check_known("pass", name, MODEL_PASSES)
    check_known("dtype", dtype, DTYPES)
    check_counts(batch_size=batch_size)
    limits = Budget(repeats, max_seconds)
    folder = None
    if out is not None:
        folder = Path(out).expanduser()
        check_new(folder / "models.csv", overwrite)
        writable_dir(folder)
    networks = [Network.parse(text) for text in dict.fromkeys(models)]
    infos = {
        f"{model_contenders.PREFIX}{network.text}": network.info()
        for network in networks
    }
    if peers:
        infos |= _peers(networks)
    about = results.announce(dtype)
    rows: list[dict[str, Any]] = []
    names = list(infos)
    with Comparison(infos, limits) as comparison:
        for name in dict.fromkeys(passes):
            case = ModelCase(batch_size, name == "train", dtype)
            found = comparison.run(case, names, names[0])
            rows += [_columns(row, infos[row.contender]) for row in found]
            print(f"\n{table(rows[-len(found) :])}")
            if folder:
                write_output(
                    folder / "models.csv",
                    text_table.to_csv([row | about for row in rows]),
                )
    return rows


def _peers(networks: Sequence[Network]) -> dict[str, ModelInfo]:
    """Returns timm's contenders and the sizes of their networks, by the models of the same names."""
    same = [
        network.name for network in networks if network.text in timm_networks.MODELS
    ]
    if not same:
        accepted = (
            f"one of {', '.join(timm_networks.MODELS)}, without options, with --peers"
        )
        raise invalid(
            "a model", accepted, ", ".join(network.text for network in networks)
        )
    return {
        f"{prefix}/{name}": zoo.model_info(name)
        for name in same
        for prefix in MODEL_PEERS
    }


def _columns(row: Measurement, info: ModelInfo) -> dict[str, Any]:
    """Returns the row of the CSV file."""
    median = row.milliseconds()
    return {
        "model": row.contender.removeprefix(model_contenders.PREFIX),
        "parameters": info.params,
        "flops": info.flops,
        "image_size": info.input_size,
        "images_per_second": results.round_digits(
            1000 * row.case.batch / median if median else None
        ),
        **row.columns("first"),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of a pass, with a line per model."""
    first = rows[0]
    lines = []
    for row in rows:
        line = [row["model"], f"{row['parameters'] / 1e6:.2f}", str(row["image_size"])]
        lines.append(line + [number(row[name]) for name in COLUMNS.values()])
    title = f"{TITLES[first['pass']]}, {first['batch']} images; x and share relative to {first['model']}\n"
    notes = [f"\n  {row['model']}: {row['note']}" for row in rows if row["note"]]
    return (
        title
        + text_table.render(["", "params M", "pixels", *COLUMNS], lines).rstrip()
        + "".join(notes)
    )


COMMAND = program(
    "benchmarks.models",
    benchmark_models,
    positional="models",
    examples=(
        "python -m benchmarks.models resnet_50 resnet_50_llll:key_dim=8 --batch_size=8 --out=models",
        "python -m benchmarks.models lambda_resnet26t --peers --batch_size=1 --out=benchmark",
    ),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
