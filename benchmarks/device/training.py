# SPDX-License-Identifier: Apache-2.0
"""Trains twenty steps of the recipe for digits, with its network or with `lambda_resnet_50`."""

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from benchmarks.device import Row, make_row
from benchmarks.interleaved.contenders import start
from lambdanet import backend as K
from lambdanet import configs
from lambdanet.backend import keras
from lambdanet.configs.recipe import override
from lambdanet.training.run.checkpoints import Logs
from lambdanet.training.train import train

__all__ = ["rows", "start"]

STEPS = 20


class Steps(keras.callbacks.Callback):
    """Keeps the time at which each step is complete, and the mean loss until then."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self.losses.append(float((logs or {})["loss"]))  # a number: it is complete
        self.times.append(time.perf_counter())


def rows(name: str) -> Iterator[Row]:
    """Yields the row of "training/digits" or "training/lambda_resnet_50", on enlarged digits."""
    network = name.partition("/")[2]
    kind = accelerator()
    batch = 64 if kind else 4
    settings = [
        f"global_batch_size={batch}",
        f"train_split=train[:{STEPS * batch}]",
        f"eval_split=test[:{batch}]",
        "epochs=1",
        "warmup_epochs=0",
        "learning_rate=0.01",
    ]
    if network != "digits":
        size = 224 if kind else 48
        settings += [f"model={network}", f"input_size={size}", "mixed_precision=true"]
    steps = Steps()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        train(
            override(configs.get_recipe("digits"), settings),
            Path(folder, "run"),
            folder,
            callback=[lambda *_: steps],
            tpu="local" if kind == "TPU" else None,
        )
    losses = steps.losses
    # From the end of the first step, which compiles.
    seconds = statistics.median(b - a for a, b in itertools.pairwise(steps.times))
    passed = len(losses) == STEPS and all(map(math.isfinite, losses))
    figures = {"steps": len(losses), "loss": f"{losses[0]:.3g} to {losses[-1]:.3g}"}
    yield make_row(f"{network} on {K.ENGINE}", passed, 1e3 * seconds, figures)


def accelerator() -> str:
    """Returns "TPU" or "GPU" if this process has one, and else an empty text; initializes none of them."""
    if K.ENGINE == "jax":
        return next(iter(K.accelerators()), "")
    kinds = {device.device_type for device in tf.config.list_physical_devices()}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "")
