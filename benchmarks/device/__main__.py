# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.device`: what works on the device of this machine, and how fast.

This process starts neither JAX nor TensorFlow, because a TPU belongs to one process at a time.
"""

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import lambdanet
from benchmarks import program
from benchmarks.device import Row, make_row, scrub
from benchmarks.interleaved.cases import PASSES, Case, ModelCase, cases
from benchmarks.interleaved.comparison import Budget, Comparison
from benchmarks.interleaved.contender_process import ContenderFailed, ContenderProcess
from benchmarks.interleaved.results import Measurement
from lambdanet.cli.environment import PACKAGES
from lambdanet.core import command_line, text_table
from lambdanet.core.commands import Folder, Overwrite
from lambdanet.core.errors import Unfinished, check_known
from lambdanet.core.files import check_new, writable_dir, write_output

# The short parts first, since the time that they leave goes to the others.
CHECKS = {
    "exports": ("exports/SavedModel on tensorflow", "exports/LiteRT on tensorflow"),
    "training": (
        "training/digits on jax",
        "training/lambda_resnet_50 on jax",
        "training/digits on tensorflow",
    ),
    "forms": ("forms on jax",),
}
PARTS = (*CHECKS, "layers", "models")
DTYPES = ("bfloat16", "float32")
LAYERS = ("layer/auto on jax", "layer/auto on torch", "peer/lucidrains", "peer/timm")


class Workload(NamedTuple):
    """What the parts `layers` and `models` measure, at a batch size for models."""

    maps: Sequence[str]
    scope: str
    models: Sequence[str]
    batch: int


ON_GPU = Workload(
    ("14x14x256x64", "28x28x128x64"),
    "23",
    ("lambda_resnet50ts", "halonet50ts", "lambda_resnet26t"),
    64,
)
ON_CPU = Workload(("8x8x16x1",), "5", ("lambda_resnet26t",), 2)

NAME = "benchmarks.device"
FILE = "device.json"
REPEATS = 5
# The time of a contender's turns in a case; a call, which may compile, is stopped after six times this.
TURN_SECONDS = 20.0
MAX_SECONDS = 180  # of a row of a check
OUT_OF_TIME = {"reason": "out of time"}
RESULTS = {True: "passed", False: "FAILED", None: "left out"}


def try_device(
    out: Folder,
    parts: Annotated[Sequence[str], "PART,..."] = (),
    minutes: float = 8.0,
    overwrite: Overwrite = False,
) -> None:
    """Tries the TPU, the GPU or the CPU of this machine, and writes one file to attach to an issue.

    Args:
      out: folder for device.json, which names nothing about you.
      parts: exports, training, forms, layers and models (default: all; without a GPU, the first three).
      minutes: the time after which nothing new is started, in equal shares for the parts.

    Raises:
      InputError: an argument is not as described.
      Unfinished: a row failed.
    """
    for part in parts:
        check_known("part", part, PARTS)
    file = Path(out) / FILE
    check_new(file, overwrite)
    writable_dir(file.parent)
    todo = list(parts or PARTS)
    end = time.monotonic() + 60 * minutes
    rows = []
    for number, part in enumerate(todo):
        now = time.monotonic()
        deadline = now + (end - now) / (len(todo) - number)
        print(part, file=sys.stderr, flush=True)
        for row in run_part(part, deadline, is_chosen=bool(parts)):
            rows.append({"part": part, **row})
    table = text_table.render(
        ["part", "case", "result", "ms", "figures"], [_cells(row) for row in rows]
    )
    report = {NAME: 1, **_software(), "rows": rows, "table": table.splitlines()}
    print(table, end="")
    write_output(file, json.dumps(report, indent=1) + "\n")
    print(f"written to {file}")
    failed = [row["case"] for row in rows if row["passed"] is False]
    if failed:
        raise Unfinished(
            f"{len(failed)} of {len(rows)} rows failed: {'; '.join(failed)}"
        )


def run_part(part: str, deadline: float, is_chosen: bool) -> Iterator[Row]:
    """Yields the rows of a part.

    Args:
      part: one of `PARTS`.
      deadline: the time of `time.monotonic` after which no row is started.
      is_chosen: whether the part runs on a CPU, too.
    """
    for contender in CHECKS.get(part, ()):
        yield from check(contender, deadline)
    if part in CHECKS:
        return
    reason = why_no_gpu()
    workload = ON_CPU if reason else ON_GPU
    if reason and not is_chosen:
        yield make_row("all", None, None, {"reason": reason})
    elif part == "layers":
        todo = []
        for dtype in DTYPES:
            todo += cases(workload.maps, [workload.scope], PASSES, dtype)
        yield from compare(LAYERS, todo, deadline)
    else:
        settings = [
            ModelCase(workload.batch, backward, dtype)
            for dtype in DTYPES
            for backward in (True, False)
        ]
        for name in workload.models:
            names = (f"model/{name} on jax", f"model/{name} on torch", f"timm/{name}")
            yield from compare(names, settings, deadline)


def why_no_gpu() -> str:
    """Returns why there is no GPU for PyTorch, which the other libraries need; empty if there is one."""
    with contextlib.closing(ContenderProcess("layer/auto on torch", {})) as process:
        try:
            device = process.about()["device"]
        except ContenderFailed as failure:
            return scrub(str(failure))
    return "PyTorch has no GPU here" if device == "CPU" else ""


def check(contender: str, deadline: float) -> Iterator[Row]:
    """Yields the rows of a check, or one with its error, until the deadline; see `run_part`."""
    with contextlib.closing(ContenderProcess(contender, {})) as process:
        try:
            about = process.about()
            while time.monotonic() < deadline:
                row = process.request("next_row", MAX_SECONDS)["row"]
                if row is None:
                    return
                yield {**row, "library": about["library"], "device": about["device"]}
        except ContenderFailed as failure:
            yield _failure(contender, str(failure))
            return
    yield make_row(contender, None, None, OUT_OF_TIME)


def compare(
    contenders: Sequence[str], todo: Sequence[Any], deadline: float
) -> Iterator[Row]:
    """Yields a row for each contender in each case, until the deadline; see `run_part`.

    Args:
      contenders: the contenders; the last one is the reference.
      todo: the cases.
      deadline: as in `run_part`.
    """
    reference = contenders[-1]
    limits = Budget(REPEATS, TURN_SECONDS)
    known: set[tuple[str, str]] = set()
    with Comparison(contenders, limits) as comparison:
        for case in todo:
            if time.monotonic() > deadline:
                yield make_row(reference, None, None, OUT_OF_TIME)
                return
            for found in comparison.run(case, contenders, reference):
                # One row for a library that is not installed.
                if found.seconds or (found.contender, found.note) not in known:
                    known.add((found.contender, found.note))
                    yield _measured(found)


def _measured(found: Measurement) -> Row:
    case = found.case
    place = case.map if isinstance(case, Case) else str(case.batch)
    name = f"{found.contender}, {place} {case.dtype} {case.pass_name}"
    if not found.seconds:
        row = _failure(name, found.note)
    else:
        columns = found.columns("timm")
        figures = {
            title: columns[title]
            for title in ("times_as_fast_as_timm", "peak_mib", "note")
            if columns[title]
        }
        row = make_row(name, True, found.milliseconds(), figures)
    return {**row, "library": found.library, "device": found.device}


def _failure(case: str, error: str) -> Row:
    """Returns the row of an error; a package that is missing is no failure."""
    passed = None if error.startswith("not installed") else False
    return make_row(case, passed, None, {"error": scrub(error)})


def _cells(row: Row) -> list[str]:
    ms = "-" if row["ms"] is None else f"{row['ms']:.2f}"
    figures = [f"{name} {value}" for name, value in row["figures"].items()]
    result = RESULTS[row["passed"]]
    return [row["part"], row["case"], result, ms, ", ".join(figures)]


def _software() -> Row:
    """Returns the versions of Python and of packages, and the system."""
    versions = {"lambdanet": lambdanet.__version__, "Python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"versions": versions, "system": system}


COMMAND = program(
    NAME,
    try_device,
    examples=(
        "python -m benchmarks.device --out=tried",
        "python -m benchmarks.device --out=tried --parts=layers,models",
    ),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
