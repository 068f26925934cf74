# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.startup`: the time to build a model, and to its first training step in `fit`."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import program
from benchmarks.turns import results
from benchmarks.turns.model_contenders import Network
from benchmarks.turns.report import number
from lambdanet import command_line, text_table
from lambdanet.backend import keras
from lambdanet.errors import check_counts

BASELINE = "Keras ResNet50"
MODELS = ("resnet_50", "lambda_resnet_50", "lambda_resnet50ts", "halonet_h1")


def benchmark_startup(
    models: Sequence[str] = (), repeats: int = 3
) -> list[dict[str, str | float]]:
    """Measures how long models take to start, relative to `keras.applications.ResNet50`.

    The first step of `fit`, on two images, has all the tracing and almost no computation. Models take turns
    in one process; the first turn, in which modules are imported, is not counted.

    Args:
      models: names of models in the zoo, as in `benchmark_models`; default: `MODELS`.
      repeats: the number of turns per model.

    Returns:
      A row per model: `model`, the medians `build_seconds` and `first_step_seconds`, and the medians of their
      ratios to the baseline in the same turn, `build_ratio` and `first_step_ratio`.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> rows = benchmark_startup(["lambda_resnet_50"], repeats=1)
    """
    check_counts(repeats=repeats)
    networks = [Network.parse(text) for text in models or MODELS]
    sizes = {network.text: network.info().input_size for network in networks}
    builders: dict[str, Callable[[], keras.Model]] = {BASELINE: _build_baseline}
    builders |= {network.text: network.create for network in networks}
    results.announce("float32")
    turns = []
    for _ in range(repeats + 1):
        turn = {}
        for name, build in builders.items():
            turn[name] = _start(build, sizes.get(name, 224))
        turns.append(turn)
    del turns[0]
    rows: list[dict[str, str | float]] = []
    for name in builders:
        row: dict[str, str | float] = {"model": name}
        for part, quantity in enumerate(("build", "first_step")):
            row[f"{quantity}_seconds"] = statistics.median(
                turn[name][part] for turn in turns
            )
            ratios = (turn[name][part] / turn[BASELINE][part] for turn in turns)
            row[f"{quantity}_ratio"] = statistics.median(ratios)
        rows.append(row)
    print(table(rows))
    return rows


def table(rows: Sequence[dict[str, str | float]]) -> str:
    """Returns a table with a line per model."""
    names = ("build_seconds", "build_ratio", "first_step_seconds", "first_step_ratio")
    cells = []
    for row in rows:
        numbers = [number(float(row[name]), 3) for name in names]
        cells.append([str(row["model"]), *numbers])
    return text_table.render(["", "build s", "x", "first step s", "x"], cells).rstrip()


def _build_baseline() -> keras.Model:
    return keras.applications.ResNet50(weights=None, classifier_activation=None)


def _start(build: Callable[[], keras.Model], size: int) -> tuple[float, float]:
    """Returns the seconds to build a model, and from the call of `fit` to the end of its first step."""
    keras.backend.clear_session()
    begin = time.perf_counter()
    model = build()
    built = time.perf_counter()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss)
    images = np.zeros([2, size, size, 3], np.float32)
    labels = np.zeros([2], np.int64)
    ends: list[float] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: ends.append(time.perf_counter())
    )
    begin_fit = time.perf_counter()
    model.fit(images, labels, verbose=0, callbacks=[callback])
    return built - begin, ends[0] - begin_fit


COMMAND = program("benchmarks.startup", benchmark_startup, positional="models")

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
