# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.predictions`: pictures per second of `pseudo-label` and of `model.predict` alone."""

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
from lambdanet import command_line, text_table
from lambdanet.command_line import Flag, IntegerFlag
from lambdanet.errors import InputError, check_counts, invalid
from lambdanet.models import zoo
from lambdanet.training.benchmark import results
from lambdanet.training.serving.export import export_saved_model

MODEL, SIDE, NUM_CLASSES, BATCH_SIZE = "lambda_resnet26t", 96, 10, 64
ROOT = Path(__file__).parents[1]
# Prints the pictures per second on batches that are prepared.
ALONE = f"""
import time, numpy as np, lambdanet
model = lambdanet.create_model({MODEL!r}, num_classes={NUM_CLASSES}, input_size={SIDE})
images = np.random.default_rng(0).normal(size=[{BATCH_SIZE} * 16, {SIDE}, {SIDE}, 3]).astype(np.float32)
model.predict(images[:{BATCH_SIZE}], {BATCH_SIZE}, verbose=0)
begin = time.monotonic()
model.predict(images, {BATCH_SIZE}, verbose=0)
print(len(images) / (time.monotonic() - begin))
"""


def benchmark_predictions(
    pictures: int = 20_000, rounds: int = 1, before: str | None = None
) -> list[dict[str, str]]:
    """Compares `pseudo-label` with 1 and 2 processes, and of an earlier checkout, with `model.predict` alone.

    They take turns on the same drawn pictures, JPEGs of 96 pixels. The ratio is to `model.predict` on the
    same number of threads: with 2 processes, on one thread, twice.

    Args:
      pictures: the number of pictures.
      rounds: the number of turns, of which the medians are printed.
      before: the checkout, which runs in the same environment; default: none.

    Returns:
      The rows of the table: pictures per second, with the start of all processes; and the largest resident
      set of a process in MB.

    Raises:
      InputError: an argument is not as described, or a process fails.

    Example:
      >>> rows = benchmark_predictions(2_000)
    """
    check_counts(pictures=pictures, rounds=rounds)
    if before is not None and not Path(before, "lambdanet").is_dir():
        raise invalid("before", "the folder of a checkout", before)
    results.announce("float32")
    alone: dict[str, list[float]] = {"all": [], "1": []}
    turns: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        _draw(Path(folder, "pictures"), pictures)
        names = [str(number) for number in range(NUM_CLASSES)]
        model = zoo.create_model(MODEL, num_classes=NUM_CLASSES, input_size=SIDE)
        export_saved_model(model, f"{folder}/model", SIDE, (0.5,) * 3, (0.5,) * 3, names)
        for number in range(rounds):
            for threads, rates in alone.items():
                rates.append(_measure_alone(threads))
            for processes in ("before", "1", "2") if before else ("1", "2"):
                root = Path(before) if before and processes == "before" else ROOT
                measured = _measure(folder, f"{processes}_{number}", root, processes, pictures)
                turns.setdefault(processes, []).append(measured)
    rows = [
        {"program": f"model.predict, {threads} threads", "pictures per s": f"{np.median(rates):.1f}"}
        for threads, rates in alone.items()
    ]
    for processes, found in turns.items():
        base = 2 * np.array(alone["1"]) if processes == "2" else np.array(alone["all"])
        speeds, memory = np.array(found).T
        name = "pseudo-label before" if processes == "before" else f"pseudo-label, {processes} processes"
        row = {"program": name, "pictures per s": f"{np.median(speeds):.1f}"}
        rows.append(row | {"x": f"{np.median(speeds / base):.3f}", "MB": f"{memory.max():.0f}"})
    print(text_table.render(list(rows[-1]), [[row.get(key, "") for key in rows[-1]] for row in rows]), end="")
    return rows


def _draw(folder: Path, count: int) -> None:
    """Draws pictures of smooth noise, in folders of a thousand."""
    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number // 1000:03d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = Image.fromarray(random.integers(0, 256, [6, 6, 3], np.uint8))
        noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=90)


def _measure_alone(threads: str) -> float:
    limit = {} if threads == "all" else {"TF_NUM_INTRAOP_THREADS": threads}
    environment = os.environ | limit | {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ALONE]
    return float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout.split()[-1])


def _measure(folder: str, out: str, root: Path, processes: str, pictures: int) -> tuple[float, float]:
    """Returns the pictures per second of `pseudo-label` in a checkout, and the memory of a process in MB."""
    paths = [f"--saved_model={folder}/model", f"--data={folder}/pictures", f"--out={folder}/{out}"]
    settings = ["--min_confidence=0", f"--batch_size={BATCH_SIZE}"]
    workers = [] if processes == "before" else [f"--direct_num_workers={processes}"]
    command = [sys.executable, "-P", "-m", "lambdanet.cli", "pseudo-label", *paths, *settings, *workers]
    begin, memory = time.monotonic(), 0.0
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(root)}, stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            time.sleep(0.5)
            memory = max(memory, largest_resident_mb(process.pid))
    if process.returncode:
        raise InputError(f"`pseudo-label` in {str(root)!r} ended with status {process.returncode}")
    return pictures / (time.monotonic() - begin), memory


COMMAND = program(
    "predictions",
    "measures pictures per second of `pseudo-label` with 1 and 2 processes, and of `model.predict` alone",
    benchmark_predictions,
    IntegerFlag("pictures", "N", "number of pictures (default: 20000)"),
    IntegerFlag("rounds", "N", "turns of each (default: 1)"),
    Flag("before", "DIR", "checkout of an earlier commit to compare with (default: none)"),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
