# SPDX-License-Identifier: Apache-2.0
"""The best epoch on the held-out split: its checkpoint, and the patience with later epochs."""

import json

from lambdanet.errors import InputError
from lambdanet.files import write_atomic
from lambdanet.training.run.checkpoints import Checkpoints

FILE = "best.json"


class BestEpoch:
    """The best epoch of a run so far, which a resumed run reads from its file.

    Args:
      checkpoints: the checkpoints in a folder of their own, of which one is kept.
      patience: the number of epochs without a better one after which the run ends; 0: it never does.
    """

    def __init__(self, checkpoints: Checkpoints, patience: int):
        self._checkpoints = checkpoints
        self._patience = patience
        self._file = checkpoints.directory / FILE
        # From 1, on the held-out split; 0: none yet.
        self.epoch = 0
        self.accuracy = float("-inf")
        if self._file.exists():
            try:
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self.epoch = int(kept["epoch"])
                self.accuracy = float(kept["accuracy"])
            except (
                KeyError,
                OverflowError,
                RecursionError,
                TypeError,
                ValueError,
            ) as error:
                file = str(self._file)
                raise InputError(
                    f"{file!r} cannot be read: {error}; remove it to continue"
                ) from None

    def update(self, epoch: int, step: int, accuracy: float) -> None:
        """Saves the current weights if they are better than all before; `OSError` if that fails."""
        if accuracy <= self.accuracy:
            return
        self.epoch = epoch
        self.accuracy = accuracy
        self._checkpoints.save(step)
        if self._checkpoints.devices.chief:
            kept = {"epoch": epoch, "step": step, "accuracy": accuracy}
            write_atomic(self._file, json.dumps(kept) + "\n")

    def is_out_of_patience(self, epoch: int) -> bool:
        """Returns whether there was no better epoch for `patience` epochs."""
        return 0 < self._patience <= epoch - self.epoch
