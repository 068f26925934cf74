# SPDX-License-Identifier: Apache-2.0
"""The command `try-device`: runs the parts of `lambdanet.try_device`, and writes their table and file.

This process imports neither JAX nor TensorFlow, because a TPU belongs to one process at a time.
"""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import lambdanet
from lambdanet import text_table
from lambdanet.cli.environment import PACKAGES
from lambdanet.errors import Unfinished, check_known
from lambdanet.files import writable_dir, write_output
from lambdanet.signatures import Choices, Folder, command
from lambdanet.try_device import scrub

# Each part -> the backend and the function of each of its processes.
PARTS = {
    "forms": (("jax", "lambdanet.try_device.forms:compare_forms"),),
    "training": (
        ("jax", "lambdanet.try_device.training:train_digits"),
        ("jax", "lambdanet.try_device.training:train_lambda_resnet"),
        ("tensorflow", "lambdanet.try_device.training:train_digits"),
        ("tensorflow", "lambdanet.try_device.training:train_lambda_resnet"),
    ),
    "detection": (("tensorflow", "lambdanet.try_device.training:train_detector"),),
    "export": (
        ("tensorflow", "lambdanet.try_device.exports:compare_saved_model"),
        ("tensorflow", "lambdanet.try_device.exports:compare_litert"),
    ),
}
FILE = "try_device.json"
MARK = "lambdanet try-device"  # the first key of the file
MAX_SECONDS = 1200  # of a process, which compiles up to a hundred programs
RESULTS = {True: "passed", False: "FAILED", None: "not installed"}

Row = dict[str, Any]


def try_device(
    out: Folder,
    parts: Annotated[Sequence[str], "PART,...", Choices(lambda: tuple(PARTS))] = (),
) -> None:
    """Tries the TPU, the GPUs or the CPU of this machine, and writes one file to attach to an issue.

    Args:
      out: folder for try_device.json, which names nothing about you.
      parts: forms, training, detection and export (default: all).
    """
    for part in parts:
        check_known("part", part, PARTS)
    folder = writable_dir(Path(out), {FILE: rb'\{\s*"' + MARK.encode()})
    rows = []
    for part in parts or PARTS:
        for backend, function in PARTS[part]:
            name = function.partition(":")[2]
            print(f"{part}: {name} on {backend}", file=sys.stderr, flush=True)
            rows += [{"part": part, **row} for row in _run(backend, function)]
    table = text_table.render(
        ["part", "case", "result", "ms", "figures"], [_cells(row) for row in rows]
    )
    report = {MARK: 1, **_software(), "rows": rows, "table": table.splitlines()}
    print(table, end="")
    write_output(folder / FILE, json.dumps(report, indent=1) + "\n")
    print(f"written to {folder / FILE}")
    failed = [row["case"] for row in rows if row["passed"] is False]
    if failed:
        raise Unfinished(
            f"{len(failed)} of {len(rows)} rows failed: {'; '.join(failed)}"
        )


def _run(backend: str, function: str) -> list[Row]:
    """Returns the rows of a process, or one with its error."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {"KERAS_BACKEND": backend, "LAMBDANET_HOME": f"{folder}/home"}
        program = [sys.executable, "-m", "lambdanet.try_device", function, folder]
        log = Path(folder, "log.txt")
        with log.open("w") as file:
            try:
                status = subprocess.run(
                    program,
                    env=os.environ | environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=MAX_SECONDS,
                ).returncode
                end = f"ended with status {status}"
                if status < 0:
                    end = f"ended by {signal.Signals(-status).name}"
            except subprocess.TimeoutExpired:
                end = f"stopped after {MAX_SECONDS} s"
        with contextlib.suppress(FileNotFoundError):
            result = json.loads(Path(folder, "rows.json").read_text())
            if "rows" in result:
                return [{"device": result["device"], **row} for row in result["rows"]]
            return [_failure(backend, function, result["error"])]
        lines = log.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
    return [_failure(backend, function, f"{end}; last line: {scrub(last)[:300]}")]


def _failure(backend: str, function: str, error: str) -> Row:
    case = f"{function.partition(':')[2]} on {backend}"
    return {"case": case, "passed": False, "ms": None, "figures": {"error": error}}


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


COMMANDS = (
    command(
        try_device,
        examples=(
            "lambdanet try-device --out=tried",
            "lambdanet try-device --out=tried --parts=forms,training",
        ),
    ),
)
