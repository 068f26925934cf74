# SPDX-License-Identifier: Apache-2.0
"""The epoch that was best on the held-out split: its checkpoint, and how long no better one has come."""

import json
from pathlib import Path

from lambdanet.errors import InputError
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.checkpoints import Checkpoints

FILE = "best.json"


class BestEpoch:
    """The best epoch of a run so far; a run that goes on finds it where it was kept.

    Args:
      checkpoints: of its own, of which it keeps one.
      patience: epochs without a better one after which to give up; 0: never.

    Attributes:
      epoch: from 1; 0 where there is none yet.
      accuracy: of that epoch on the held-out split.

    Raises:
      InputError: what was kept cannot be read.
    """

    def __init__(self, checkpoints: Checkpoints, patience: int):
        self._checkpoints = checkpoints
        self._patience = patience
        self.epoch, self.accuracy = 0, float("-inf")
        if self._file.exists():
            try:
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self.epoch, self.accuracy = int(kept["epoch"]), float(kept["accuracy"])
            except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
                raise InputError(f"{str(self._file)!r} cannot be read: {error}; remove it to go on") from None

    @property
    def _file(self) -> Path:
        return self._checkpoints.directory / FILE

    def consider(self, epoch: int, step: int, accuracy: float) -> None:
        """Keeps the present weights if they are better than any before.

        Raises:
          OSError: they cannot be written.
        """
        if accuracy <= self.accuracy:
            return
        self.epoch, self.accuracy = epoch, accuracy
        self._checkpoints.save(step)
        if self._checkpoints.devices.chief:
            kept = {"epoch": epoch, "step": step, "accuracy": accuracy}
            model_dirs.write_text(self._file, json.dumps(kept) + "\n")

    def given_up(self, epoch: int) -> bool:
        """Returns whether no better epoch has come for too long."""
        return 0 < self._patience <= epoch - self.epoch
