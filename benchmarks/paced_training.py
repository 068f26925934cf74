# SPDX-License-Identifier: Apache-2.0
"""`python paced_training.py RECIPE MODEL_DIR KEY=VALUE...`: trains an epoch per line of the standard input.

After each epoch it prints its times and losses. `benchmarks.steps` runs it, also on an earlier checkout: it
imports only what both have.
"""

import itertools
import json
import os
import statistics
import sys
import time
from typing import Any

from lambdanet import configs
from lambdanet.configs.recipe import override
from lambdanet.training.train import train

from lambdanet.backend import keras  # isort: skip  (the Keras that training chose)


class Turns(keras.callbacks.Callback):
    """Waits for a line before each epoch, and writes a line of JSON after it, to a file."""

    def __init__(self, answers: Any):
        super().__init__()
        self._answers, self._start = answers, (0.0, 0.0)
        # The time of its end, the mean loss of the epoch so far.
        self._steps: list[tuple[float, float]] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.on_train_end()
        sys.stdin.readline()
        self._start = time.perf_counter(), time.process_time()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # A number: the step is complete.
        self._steps.append((time.perf_counter(), (logs or {})["loss"]))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._steps:
            return
        wall = time.perf_counter() - self._start[0]
        cpu = time.process_time() - self._start[1]
        ends, means = zip(*self._steps, strict=True)
        step = statistics.median(b - a for a, b in itertools.pairwise(ends))
        sums = [0.0, *(number * mean for number, mean in enumerate(means, 1))]
        losses = [b - a for a, b in itertools.pairwise(sums)]
        turn = {
            "step_ms": 1000 * step,
            "epoch_s": wall,
            "epoch_cpu_s": cpu,
            "losses": losses,
        }
        self._steps = []
        print(json.dumps(turn), file=self._answers, flush=True)


if __name__ == "__main__":
    recipe, model_dir, *settings = sys.argv[1:]
    turns = Turns(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # for what `train` prints
    train(
        override(configs.get_recipe(recipe), settings),
        model_dir,
        callback=[lambda *_: turns],
    )
