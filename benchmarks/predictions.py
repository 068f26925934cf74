# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.predictions`: pictures per second of `pseudo-label` and of `model.predict` alone."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import program
from benchmarks.memory import largest_resident_mb
from benchmarks.turns import results
from lambdanet import command_line, text_table
from lambdanet.errors import InputError, check_counts, invalid
from lambdanet.models import zoo
from lambdanet.training.serving.export import export_saved_model

MODEL = "lambda_resnet26t"
SIDE = 96
NUM_CLASSES = 10
BATCH_SIZE = 64
ROOT = Path(__file__).parents[1]
SHARD_SIZE = 256  # the rate is that between the first and the last part
# Prints the pictures per second on batches that are prepared.
ALONE = f"""
import sys, time, numpy as np, lambdanet
model = lambdanet.create_model({MODEL!r}, num_classes={NUM_CLASSES}, input_size={SIDE})
images = np.random.default_rng(0).normal(size=[{BATCH_SIZE} * 40, {SIDE}, {SIDE}, 3]).astype(np.float32)
model.predict(images[:{BATCH_SIZE}], {BATCH_SIZE}, verbose=0)
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
model.predict(images, {BATCH_SIZE}, verbose=0)
print(len(images) / (time.monotonic() - begin))
"""


def benchmark_predictions(
    pictures: int = 20_000, rounds: int = 1, before: str | None = None
) -> list[dict[str, str]]:
    """Compares `pseudo-label` with 1 and 2 workers, and of an earlier checkout, with `model.predict` alone.

    They take turns on the same drawn pictures, JPEGs of 96 pixels. The ratio is to the same number of
    processes with `model.predict` at the same time, which share the cores alike; before: to 2.

    Args:
      pictures: the number of pictures.
      rounds: the number of turns, of which the medians are printed.
      before: the checkout, which runs in the same environment; default: none.

    Returns:
      The rows of the table: pictures per second while predicting, and with the start of all processes, the
      selection and the records; and the largest resident set of a process in MB.

    Raises:
      InputError: an argument is not as described, or a process fails.

    Example:
      >>> rows = benchmark_predictions(2_000)
    """
    check_counts(pictures=pictures, rounds=rounds)
    if before is not None and not Path(before, "lambdanet").is_dir():
        raise invalid("before", "the folder of a checkout", before)
    results.announce("float32")
    alone: dict[str, list[float]] = {"1": [], "2": []}
    turns: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        _draw(Path(folder, "pictures"), pictures)
        names = [str(number) for number in range(NUM_CLASSES)]
        model = zoo.create_model(MODEL, num_classes=NUM_CLASSES, input_size=SIDE)
        export_saved_model(
            model, f"{folder}/model", SIDE, (0.5,) * 3, (0.5,) * 3, names
        )
        for number in range(rounds):
            for processes, rates in alone.items():
                rates.append(_measure_alone(int(processes)))
            for program in ("before", "1", "2") if before else ("1", "2"):
                root = Path(before) if before and program == "before" else ROOT
                found = _measure(folder, f"{program}_{number}", root, program, pictures)
                turns.setdefault(program, []).append(found)
    rows = [
        {
            "program": "model.predict",
            "workers": processes,
            "pictures per s": f"{np.median(rates):.1f}",
        }
        for processes, rates in alone.items()
    ]
    for program, measured in turns.items():
        processes = "2" if program == "before" else program
        speeds, with_start, memory = np.array(measured).T
        row = {
            "program": "pseudo-label before" if program == "before" else "pseudo-label",
            "workers": processes,
            "pictures per s": f"{np.median(speeds):.1f}",
            "x": f"{np.median(speeds / alone[processes]):.3f}",
            "with start": f"{np.median(with_start):.1f}",
            "MB": f"{memory.max():.0f}",
        }
        rows.append(row)
    columns = list(rows[-1])
    lines = []
    for row in rows:
        lines.append([row.get(column, "") for column in columns])
    print(text_table.render(columns, lines), end="")
    return rows


def _draw(folder: Path, count: int) -> None:
    """Draws pictures of smooth noise, in folders of a thousand."""
    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number // 1000:03d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = Image.fromarray(random.integers(0, 256, [6, 6, 3], np.uint8))
        noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def _measure_alone(count: int) -> float:
    """Returns the pictures per second of processes with `model.predict` at the same time."""
    threads = str(max(1, (os.cpu_count() or 1) // count))
    environment = {
        "TF_NUM_INTRAOP_THREADS": threads,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": str(ROOT),
    }
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ALONE],
                    env=os.environ | environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            )
            for _ in range(count)
        ]
        for process in processes:
            assert process.stdout and process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()
        return sum(float(process.communicate()[0]) for process in processes)


def _measure(
    folder: str, out: str, root: Path, processes: str, pictures: int
) -> tuple[float, float, float]:
    """Returns pictures per second of `pseudo-label`, those with its start, and its memory in MB."""
    paths = [
        f"--saved_model={folder}/model",
        f"--data={folder}/pictures",
        f"--out={folder}/{out}",
    ]
    settings = [
        "--min_confidence=0",
        f"--batch_size={BATCH_SIZE}",
        f"--shard_size={SHARD_SIZE}",
    ]
    workers = [] if processes == "before" else [f"--num_workers={processes}"]
    command = [
        sys.executable,
        "-P",
        "-m",
        "lambdanet.cli",
        "pseudo-label",
        *paths,
        *settings,
        *workers,
    ]
    progress = Path(folder, out, ".progress")
    parts: dict[str, float] = {}  # when each was written
    begin = time.monotonic()
    memory = 0.0
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            time.sleep(0.2)
            memory = max(memory, largest_resident_mb(process.pid))
            with contextlib.suppress(FileNotFoundError):  # removed at the end
                parts |= {
                    path.name: path.stat().st_mtime for path in progress.glob("*.npz")
                }
    if process.returncode:
        raise InputError(
            f"`pseudo-label` in {str(root)!r} ended with status {process.returncode}"
        )
    if len(parts) < 2:
        raise invalid(
            "pictures",
            f"more than {SHARD_SIZE}, for a rate between two parts",
            pictures,
        )
    speed = SHARD_SIZE * (len(parts) - 1) / (max(parts.values()) - min(parts.values()))
    return speed, pictures / (time.monotonic() - begin), memory


COMMAND = program("benchmarks.predictions", benchmark_predictions)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
