# SPDX-License-Identifier: Apache-2.0
"""What is done already: answers of the teacher, part by part, in a folder that goes once all is written."""

import dataclasses
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.errors import InputError
from lambdanet.training.run.model_dir import write_text

FOLDER, SETTINGS = ".progress", "settings.json"
BINS = 50  # of the histogram of confidences


@dataclasses.dataclass(frozen=True)
class Answers:
    """What the teacher said of a part.

    Attributes:
      places: of the pictures in the part that it is sure enough of; int64 [n].
      labels: the likeliest class of each; int64 [n].
      confidences: its probability; float32 [n].
      probabilities: of all classes for soft labels, float32 [n, num_classes]; else [n, 0].
      histogram: how many pictures have which confidence, also below the threshold; int64 [BINS].
      unreadable: the names of the pictures that are damaged.
    """

    places: np.ndarray
    labels: np.ndarray
    confidences: np.ndarray
    probabilities: np.ndarray
    histogram: np.ndarray
    unreadable: np.ndarray


class Progress:
    """The answers so far, of a run with these settings.

    Args:
      out: the folder of the run.
      settings: what decides the result; those of an earlier run there have to be the same.

    Raises:
      InputError: the folder cannot be written, or is of another run.
    """

    def __init__(self, out: Path, settings: dict[str, Any]):
        self._folder = out / FOLDER
        there = self._folder / SETTINGS
        try:
            if there.exists():
                refuse_other(out, json.loads(there.read_text(encoding="utf-8")), settings)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_text(there, json.dumps(settings, indent=2) + "\n")
        except (OSError, json.JSONDecodeError) as error:
            raise InputError(f"out {str(out)!r} cannot be used: {error}") from None

    def has(self, part: int) -> bool:
        return self._file(part).exists()

    def save(self, part: int, answers: Answers) -> None:
        """Keeps the answers of a part, all of them or none."""
        contents = io.BytesIO()
        np.savez(contents, **dataclasses.asdict(answers))
        write_bytes(self._file(part), contents.getvalue())

    def load(self, part: int) -> Answers:
        with np.load(self._file(part)) as arrays:
            return Answers(**arrays)

    def all(self, num_parts: int) -> Iterator[Answers]:
        return (self.load(part) for part in range(num_parts))

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _file(self, part: int) -> Path:
        return self._folder / f"part-{part:06d}.npz"


def refuse_other(out: Path, there: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raises `InputError` where the settings of an earlier run are others, with the first that differs."""
    for name, value in settings.items():
        if there.get(name) != value:
            raise InputError(
                f"out {str(out)!r} was begun with {name} {there.get(name)!r}, not {value!r}; accepted: "
                f"the same, or "
                "another folder"
            )


def write_bytes(path: Path, contents: bytes) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(contents)
    os.replace(partial, path)
