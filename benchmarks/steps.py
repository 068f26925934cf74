# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.steps`: steps and epochs of `train` on each backend, and in an earlier checkout."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import program
from benchmarks.turns import results
from lambdanet import command_line, configs, text_table
from lambdanet.backend import keras
from lambdanet.configs.recipe import override
from lambdanet.errors import InputError, check_counts, invalid
from lambdanet.models.weights import weight_files
from lambdanet.training.run import build

RECIPE = "digits"
SETTINGS = {
    "digits": "",
    "lambda_resnet26t at 128 pixels": "model=lambda_resnet26t input_size=128 global_batch_size=16 "
    "train_split=train[:320] eval_split=test[:64]",
}
ENGINES = {
    "TensorFlow": {"KERAS_BACKEND": "tensorflow"},
    "JAX": {"KERAS_BACKEND": "jax"},
}
LEARNING_RATE = 0.002  # at a higher one, rounding grows
NUM_LOSSES = 20
# Between turns, in which the other process prepares its next batches.
SETTLE_SECONDS = 1.0
ROOT = Path(__file__).parents[1]


def benchmark_steps(before: str | None = None, epochs: int = 7) -> list[dict[str, str]]:
    """Compares the training of Keras 3 on TensorFlow, on JAX and of an earlier checkout.

    Each trains in its own process with data, evaluation and checkpoints, from the same weights. They take
    turns of an epoch; the first one, which compiles, is not counted. Ratios are medians over the rounds.

    Args:
      before: the checkout, which runs in the same environment; default: none.
      epochs: the number of turns of each.

    Returns:
      The rows of the table; ratios and differences are relative to the first of a recipe.

    Raises:
      InputError: an argument is not as described, or a process ends.

    Example:
      >>> rows = benchmark_steps("/tmp/before", epochs=3)
    """
    check_counts(epochs=epochs)
    if before is not None and not Path(before, "lambdanet").is_dir():
        raise invalid("before", "the folder of a checkout", before)
    results.announce("float32")
    rows = []
    for name, settings in SETTINGS.items():
        with _processes(settings.split(), before, epochs + 1) as processes:
            order = list(processes)
            rounds = []
            for _ in range(epochs + 1):
                rounds.append(
                    {engine: _turn(engine, processes[engine]) for engine in order}
                )
                order = order[1:] + order[:1]
        rows += [
            {"recipe": name, "engine": engine} | _summary(engine, rounds)
            for engine in processes
        ]
    print(
        text_table.render(list(rows[0]), [list(row.values()) for row in rows]), end=""
    )
    return rows


@contextlib.contextmanager
def _processes(
    settings: Sequence[str], before: str | None, epochs: int
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Yields a process of `paced_training` for each engine, and ends them."""
    engines = {
        name: {"PYTHONPATH": str(ROOT)} | environment
        for name, environment in ENGINES.items()
    }
    if before is not None:
        engines = {"before": {"PYTHONPATH": os.path.abspath(before)}} | engines
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weights = folder / "weights.safetensors"
        keras.utils.set_random_seed(0)
        weight_files.save(
            build.build_model(override(configs.get_recipe(RECIPE), settings)), weights
        )
        changes = (
            f"start_from={weights}",
            f"learning_rate={LEARNING_RATE}",
            f"epochs={epochs}",
        )
        processes = {}
        program = str(ROOT / "benchmarks" / "paced_training.py")
        for name, environment in engines.items():
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    program,
                    RECIPE,
                    str(folder / name),
                    *settings,
                    *changes,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context((folder / f"{name}.txt").open("w")),
                env=os.environ | environment,
                bufsize=0,
            )
            processes[name] = stack.enter_context(process)
            stack.callback(process.kill)
        yield processes


def _turn(engine: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Lets an engine train an epoch, and returns what it prints."""
    assert process.stdin and process.stdout
    time.sleep(SETTLE_SECONDS)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"\n")
    if line := process.stdout.readline():
        return json.loads(line)
    raise InputError(f"training on {engine} ended with status {process.wait()}")


def _summary(engine: str, rounds: list[dict[str, dict[str, Any]]]) -> dict[str, str]:
    """Returns medians, their ratios to the first engine, and the largest difference of the losses."""
    first = next(iter(rounds[0]))
    cells = {}
    for quantity in ("step_ms", "epoch_s", "epoch_cpu_s"):
        pairs = [
            (turns[engine][quantity], turns[first][quantity]) for turns in rounds[1:]
        ]
        cells[quantity] = f"{statistics.median(own for own, _ in pairs):.2f}"
        cells[f"{quantity.rpartition('_')[0]} x"] = (
            f"{statistics.median(a / b for a, b in pairs):.3f}"
        )
    losses = list(
        zip(rounds[0][engine]["losses"], rounds[0][first]["losses"], strict=True)
    )[:NUM_LOSSES]
    return cells | {
        f"difference of {len(losses)} losses": f"{max(abs(a - b) for a, b in losses):.6f}"
    }


COMMAND = program("benchmarks.steps", benchmark_steps)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
