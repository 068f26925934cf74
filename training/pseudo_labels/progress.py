# SPDX-License-Identifier: Apache-2.0
"""The saved predictions of an unfinished run, a file per part."""

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.errors import InputError, invalid
from lambdanet.files import write_atomic

FOLDER, SETTINGS = ".progress", "settings.json"
BINS = 50  # in the histogram of confidences


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The teacher's predictions for the candidates of a part: its pictures above the minimal confidence."""

    places: np.ndarray  # the positions of the candidates in the part, int64 [n]
    labels: np.ndarray  # the top class of each candidate, int64 [n]
    confidences: np.ndarray  # the probability of that class, float32 [n]
    probabilities: np.ndarray  # of all classes for soft labels, float32 [n, num_classes]; else [n, 0]
    histogram: np.ndarray  # pictures per confidence, including those below the minimum, int64 [BINS]
    unreadable: np.ndarray  # the names of damaged pictures


class Progress:
    """The predictions of a run so far in its folder `out`.

    `InputError` where the folder cannot be written, or has a run with other settings.
    """

    def __init__(self, out: Path, settings: dict[str, Any]):
        self._folder = out / FOLDER
        file = self._folder / SETTINGS
        try:
            if file.exists():
                check_settings(out, json.loads(file.read_text(encoding="utf-8")), settings)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomic(file, json.dumps(settings, indent=2) + "\n")
        except (OSError, json.JSONDecodeError) as error:
            raise InputError(f"out {str(out)!r} cannot be read or written ({error})") from None

    def has(self, part: int) -> bool:
        """Whether a part has predictions."""
        return self._file(part).exists()

    def save(self, part: int, predictions: Predictions) -> None:
        """Writes the predictions of a part at once."""
        content = io.BytesIO()
        np.savez(content, **dataclasses.asdict(predictions))
        write_atomic(self._file(part), content.getvalue())

    def load(self, part: int) -> Predictions:
        """Returns the predictions of a part."""
        with np.load(self._file(part)) as arrays:
            return Predictions(**arrays)

    def remove(self) -> None:
        """Removes all predictions, after the end of the run."""
        shutil.rmtree(self._folder)

    def _file(self, part: int) -> Path:
        return self._folder / f"part-{part:06d}.npz"


def check_settings(out: Path, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raises `InputError` if an earlier run in the folder has other settings."""
    for name, value in settings.items():
        if saved.get(name) != value:
            hint = "continue with the same settings, or give another folder"
            raise invalid(name, f"{saved.get(name)!r} as in the run in {str(out)!r}", value, hint)
