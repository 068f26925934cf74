# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.streams`: the time of a step of an exported stream, early and late in a signal."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import program
from benchmarks.turns import results
from lambdanet import command_line
from lambdanet.errors import check_counts, invalid
from lambdanet.models.sequences import create_sequence_model
from lambdanet.models.streaming import streaming_model

CHUNK = 16
EARLY = 10


def benchmark_streams(steps: int = 100_000, repeats: int = 2000) -> dict[str, float]:
    """Measures a step of `lambda_resnet18_1d_causal`, 16 positions in LiteRT, on one thread.

    The states after 10 steps and after all are kept, and steps from both take turns.

    Args:
      steps: the number of steps, each of 16 positions.
      repeats: the turns.

    Returns:
      The median seconds of a step after 10 and after all, and the median of their ratios.

    Raises:
      InputError: an argument is not positive, or there are at most 10 steps.

    Example:
      >>> figures = benchmark_streams(steps=11, repeats=3)
    """
    from ai_edge_litert.interpreter import Interpreter

    check_counts(steps=steps, repeats=repeats)
    if steps <= EARLY:
        raise invalid("steps", f"above {EARLY}", steps)
    model = create_sequence_model(
        "lambda_resnet18_1d_causal", num_classes=10, in_channels=1, weights="mnist1d"
    )
    stream = streaming_model(model)
    results.announce("float32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.tflite"
        stream.export(path, format="litert", verbose=False)
        run = Interpreter(str(path), num_threads=1).get_signature_runner()
    random = np.random.default_rng(0)
    chunks = random.normal(size=[1000, 1, CHUNK, 1]).astype("float32")
    late = {name: np.array(x) for name, x in stream.initial_state(1).items()}
    early = late
    for step in range(steps):
        if step == EARLY:
            early = late
        late = run(inputs=chunks[step % len(chunks)], **late)
        del late["outputs"]
    turns = []
    for turn in range(repeats):
        inputs = chunks[turn % len(chunks)]
        turns.append([_seconds(run, inputs=inputs, **state) for state in (early, late)])
    figures = {
        "early": statistics.median(first for first, _ in turns),
        "late": statistics.median(second for _, second in turns),
        "ratio": statistics.median(second / first for first, second in turns),
    }
    print(f"after {EARLY} steps: {figures['early'] * 1e3:.3f} ms a step")
    print(f"after {steps:,} steps: {figures['late'] * 1e3:.3f} ms a step")
    print(f"late / early, median of {repeats} turns: {figures['ratio']:.3f}")
    return figures


def _seconds(run: Callable[..., Any], **inputs: Any) -> float:
    begin = time.perf_counter()
    run(**inputs)
    return time.perf_counter() - begin


COMMAND = program("benchmarks.streams", benchmark_streams)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
