# SPDX-License-Identifier: Apache-2.0
"""The file history.csv of a run: a row per epoch."""

import csv
import time
from pathlib import Path
from typing import Any

from lambdanet import text_table
from lambdanet.backend import keras
from lambdanet.errors import InputError
from lambdanet.files import write_atomic


class HistoryFile(keras.callbacks.Callback):
    """Writes a CSV file with a row per epoch, counted from 1; a resumed run appends to its own rows.

    Args:
      path: the file, rewritten after each epoch.
      initial_epoch: the number of epochs completed; later rows, of a run that was killed, are dropped.
    """

    def __init__(self, path: Path, initial_epoch: int):
        super().__init__()
        self._path = path
        self._rows = [
            row for row in read_history(path) if int(row["epoch"]) <= initial_epoch
        ]
        self._start = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        row = {
            "epoch": epoch + 1,
            "step": int(self.model.optimizer.iterations.numpy()),
            "learning_rate": f"{learning_rate(self.model):.6g}",
            "seconds": f"{time.monotonic() - self._start:.2f}",
            **{name: f"{value:.6f}" for name, value in (logs or {}).items()},
        }
        self._rows.append({name: str(value) for name, value in row.items()})
        write_atomic(self._path, text_table.to_csv(self._rows))


def learning_rate(model: keras.Model) -> float:
    """Returns the learning rate of the last step of a compiled model."""
    optimizer = model.optimizer  # whose `learning_rate` is that of the next step
    return float(optimizer._learning_rate(optimizer.iterations.numpy() - 1))


def read_history(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a history file; none where there is no file.

    Raises:
      InputError: the file is something else.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        epochs = [int(row["epoch"]) for row in rows]
        [float(value or 0) for row in rows for value in row.values()]
        if epochs != sorted(set(epochs)):
            raise ValueError("epochs out of order")
    except (csv.Error, KeyError, TypeError, ValueError):
        raise InputError(
            f"{str(path)!r} is not the history of a run, a CSV of numbers in UTF-8 with a column epoch, "
            "each once and in order; remove it to continue without it"
        ) from None
    return rows
