# SPDX-License-Identifier: Apache-2.0
"""The best epoch on the held-out split: its checkpoint, and the patience with later epochs."""

import json
from typing import Any

from lambdanet.backend import keras
from lambdanet.errors import InputError
from lambdanet.files import write_atomic
from lambdanet.training.run.checkpoints import Checkpoints

FILE = "best.json"


class LastEpoch(keras.callbacks.Callback):
    """What a run without a held-out split has instead of a best epoch: its last one counts."""

    def is_out_of_patience(self, epoch: int) -> bool:
        """Returns whether the epochs up to this one, from 1, were too long no better than the best."""
        return False

    def result(self) -> dict[str, float]:
        """Returns the best epoch and its accuracy, by their names in a run's report, if there is one."""
        return {}


class BestEpoch(LastEpoch):
    """The best epoch of a run so far, which a resumed run reads from its file.

    At the end of each epoch, it saves the weights if they are better than all before, and stops the run when
    it is out of patience.

    Args:
      checkpoints: the checkpoints in a folder of their own, of which one is kept.
      patience: the number of epochs without a better one after which the run ends; 0: it never does.
    """

    def __init__(self, checkpoints: Checkpoints, patience: int):
        super().__init__()
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

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        accuracy = (logs or {})["val_accuracy"]
        if accuracy > self.accuracy:
            self._keep(epoch + 1, accuracy)
        if self.is_out_of_patience(epoch + 1):
            self.model.stop_training = True

    def _keep(self, epoch: int, accuracy: float) -> None:
        self.epoch = epoch
        self.accuracy = accuracy
        step = int(self.model.optimizer.iterations.numpy())
        self._checkpoints.save(step)
        if self._checkpoints.devices.chief:
            kept = {"epoch": epoch, "step": step, "accuracy": accuracy}
            write_atomic(self._file, json.dumps(kept) + "\n")

    def is_out_of_patience(self, epoch: int) -> bool:
        return 0 < self._patience <= epoch - self.epoch

    def result(self) -> dict[str, float]:
        return {"best_epoch": self.epoch, "best_val_accuracy": self.accuracy}
