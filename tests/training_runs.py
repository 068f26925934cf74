# SPDX-License-Identifier: Apache-2.0
"""Comparisons of training runs."""

from pathlib import Path

import numpy as np

from lambdanet.training.run import history, model_dir

COLUMNS = (
    "epoch",
    "step",
    "learning_rate",
    "loss",
    "accuracy",
    "val_loss",
    "val_accuracy",
)


def assert_same_run(left: Path, right: Path) -> None:
    """Asserts that two runs have the same trained weights and the same history, except for its times."""
    for a, b in zip(weights(left), weights(right), strict=True):
        np.testing.assert_array_equal(a, b)
    rows, expected = (
        history.read_history(path / model_dir.HISTORY) for path in (left, right)
    )
    rows, expected = (
        [[row[name] for name in COLUMNS] for row in found] for found in (rows, expected)
    )
    np.testing.assert_array_equal(rows, expected)


def weights(path: Path) -> list[np.ndarray]:
    """Returns the weights of the trained model of a run."""
    return model_dir.load_trained_model(path)[0].get_weights()


def saved_steps(path: Path) -> list[int]:
    """Returns the steps of the checkpoints of a run."""
    return sorted(
        int(file.stem.removeprefix("ckpt-"))
        for file in path.glob("checkpoints/ckpt-*.npz")
    )
