# SPDX-License-Identifier: Apache-2.0
"""Interruptions and comparisons of training runs."""

import signal
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest

from lambdanet.training.run import callbacks, history, model_dir

COLUMNS = (
    "epoch",
    "step",
    "learning_rate",
    "loss",
    "accuracy",
    "val_loss",
    "val_accuracy",
)


def act_at(
    patch: pytest.MonkeyPatch,
    steps: Collection[int],
    action: Callable[[], object],
    event: str = "on_train_batch_end",
) -> None:
    """Makes runs do something after batches of these steps, before a checkpoint is written."""
    original = getattr(callbacks.SaveCheckpoints, event)

    def act(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) in steps:
            action()
        original(self, batch, logs)

    patch.setattr(callbacks.SaveCheckpoints, event, act)


def send_sigterm() -> None:
    """Sends SIGTERM to this process, as the owner of a preempted machine does."""
    signal.raise_signal(signal.SIGTERM)


def assert_same_run(left: Path, right: Path) -> None:
    """Asserts that two runs have the same trained weights and the same history, except for its times."""
    for a, b in zip(weights(left), weights(right), strict=True):
        np.testing.assert_array_equal(a, b)
    assert _results(left) == _results(right)


def _results(path: Path) -> list[list[str]]:
    rows = history.read_history(path / model_dir.HISTORY)
    return [[row[name] for name in COLUMNS] for row in rows]


def weights(path: Path) -> list[np.ndarray]:
    """Returns the weights of the trained model of a run."""
    return model_dir.load_trained_model(path)[0].get_weights()


def saved_steps(path: Path) -> list[int]:
    """Returns the steps of the checkpoints of a run."""
    return sorted(
        int(file.stem.removeprefix("ckpt-"))
        for file in path.glob("checkpoints/ckpt-*.npz")
    )
