# SPDX-License-Identifier: Apache-2.0
"""The predictions of a run, a file per part, which a repeated run does not predict again."""

import contextlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lambdanet.errors import InputError, invalid, one_line
from lambdanet.files import locked, read_remote, write_output

FOLDER = ".progress"
SETTINGS = "settings.json"
RESULT = "result.json"
BINS = 50  # in the histogram of confidences


def select_candidates(
    pictures: Sequence[tuple[int, str, int]],
    rows: Sequence[np.ndarray | None],
    min_confidence: float,
    soft: bool,
) -> dict[str, np.ndarray]:
    """Returns what is kept of the predictions for the pictures of a part.

    Args:
      pictures: the rank, name and `checksum` of each picture.
      rows: the probabilities of the classes per picture; None for unreadable ones.
      min_confidence: the smallest probability of the top class of a candidate for a label.
      soft: whether to keep the probabilities of all classes.

    Returns:
      places: the positions of the candidates in the part, int64 [n].
      ranks: the ranks of the candidates, int64 [n].
      labels: the top class of each candidate, int64 [n].
      checksums: those of the candidates, int64 [n].
      confidences: the probability of that class, float32 [n].
      probabilities: those of all classes, float32 [n, num_classes]; else [n, 0].
      histogram: pictures per confidence, including those that are no candidates, int64 [BINS].
      unreadable: the names of unreadable pictures.
    """
    confidences = np.array(
        [-1 if row is None else row.max() for row in rows], np.float32
    )
    readable = confidences >= 0
    bins = np.minimum(confidences[readable].astype(np.float64) * BINS, BINS - 1).astype(
        np.int64
    )
    places = np.flatnonzero(
        readable & (confidences.astype(np.float64) >= min_confidence)
    )
    table = np.array([rows[place] for place in places.tolist()], np.float32)
    table = table.reshape(len(places), -1 if len(places) else 0)
    return {
        "places": places,
        "ranks": np.array([rank for rank, _, _ in pictures], np.int64)[places],
        "checksums": np.array([number for _, _, number in pictures], np.int64)[places],
        "labels": table.argmax(axis=1) if len(places) else places,
        "confidences": confidences[places],
        "probabilities": table if soft else table[:, :0],
        "histogram": np.bincount(bins, minlength=BINS),
        "unreadable": np.array([name for _, name, _ in pictures], np.str_)[~readable],
    }


def checksum(content: bytes) -> int:
    """Returns a number that differs where a picture was changed."""
    return zlib.crc32(content)


class Summary(NamedTuple):
    """Counts over parts."""

    histogram: np.ndarray  # pictures per confidence, int64 [BINS]
    candidates: np.ndarray  # those per class, int64 [num_classes]
    # The number of each part, and the names in it.
    unreadable: list[tuple[int, list[str]]]

    def check_readable(self) -> None:
        """Raises `InputError` where no picture can be read."""
        count = sum(len(names) for _, names in self.unreadable)
        if count and not self.histogram.sum():
            raise InputError(f"none of {count} pictures can be read")

    def as_json(self) -> dict[str, list[Any]]:
        """Returns the histogram, and the unreadable pictures in the order of the parts."""
        names = [name for _, part in sorted(self.unreadable) for name in part]
        return {"histogram": self.histogram.tolist(), "unreadable": names}


def merge_summaries(summaries: Iterable[Summary]) -> Summary:
    """Returns the sum of counts; the result of no counts is neutral."""
    total = Summary(np.zeros(1, np.int64), np.zeros(1, np.int64), [])
    for one in summaries:
        histogram, candidates = (
            total.histogram + one.histogram,
            total.candidates + one.candidates,
        )
        total = Summary(histogram, candidates, total.unreadable + one.unreadable)
    return total


class Progress:
    """The unfinished run in a folder `out`, local or remote."""

    def __init__(self, out: str, settings: dict[str, Any]):
        self.out = out
        self.settings = settings
        self.folder = f"{out}/{FOLDER}"

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keeps other runs out of a local folder; `InputError` where one is in it."""
        return (
            contextlib.nullcontext()
            if "://" in self.out
            else locked(Path(self.out), "out")
        )

    def begin(self) -> None:
        """Writes the settings; `InputError` where that fails, or the folder has a run with other settings."""
        file = f"{self.folder}/{SETTINGS}"
        try:
            if tf.io.gfile.exists(file):
                check_settings(self.out, json.loads(self.read(SETTINGS)), self.settings)
        except (
            OSError,
            tf.errors.OpError,
            json.JSONDecodeError,
            UnicodeDecodeError,
        ) as error:
            raise InputError(
                f"out {self.out!r} cannot be read or written ({error})"
            ) from None
        self.write(SETTINGS, json.dumps(self.settings, indent=2) + "\n")

    def has(self, part: int) -> bool:
        """Returns whether a part has predictions."""
        return self.exists(part_file(part))

    def finished(self) -> set[int]:
        """Returns the numbers of the parts that have predictions."""
        names = tf.io.gfile.listdir(self.folder)
        return {
            int(name[5:-4])
            for name in names
            if name.startswith("part-") and name.endswith(".npz")
        }

    def save(self, part: int, predictions: Mapping[str, Any]) -> None:
        """Writes the predictions of a part at once."""
        content = io.BytesIO()
        np.savez(content, **predictions)
        self.write(part_file(part), content.getvalue())

    @contextlib.contextmanager
    def open(self, part: int) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the predictions of a part, of which only the arrays that are used are read.

        `InputError` for a damaged file.
        """
        path = f"{self.folder}/{part_file(part)}"
        try:
            with tf.io.gfile.GFile(path, "rb") as file, np.load(file) as arrays:
                yield arrays
        except InputError:
            raise
        except Exception as error:  # NumPy raises many kinds for a damaged file
            problem = f"{path!r} is damaged ({one_line(error)})"
            raise InputError(
                f"{problem}; remove it to predict its pictures again"
            ) from None

    def summarize(self, part: int, num_classes: int) -> Summary:
        """Returns the counts of a part."""
        with self.open(part) as predictions:
            candidates = np.bincount(predictions["labels"], minlength=num_classes)
            return Summary(
                predictions["histogram"],
                candidates,
                [(part, predictions["unreadable"].tolist())],
            )

    def save_result(self, result: dict[str, Any]) -> None:
        """Writes what the last step of the pipeline returns to the caller."""
        self.write(RESULT, json.dumps(result))

    def result(self) -> dict[str, Any]:
        """Returns what `save_result` wrote."""
        return json.loads(self.read(RESULT))

    def exists(self, name: str) -> bool:
        """Returns whether a file exists."""
        return tf.io.gfile.exists(f"{self.folder}/{name}")

    def write(self, name: str, content: bytes | str) -> None:
        """Writes a file completely or not at all; `InputError` where it cannot be written."""
        write_output(f"{self.folder}/{name}", content)

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        return read_remote(f"{self.folder}/{name}")

    def remove(self) -> None:
        """Removes all files, after the end of the run."""
        tf.io.gfile.rmtree(self.folder)


def check_settings(out: str, saved: Any, settings: dict[str, Any]) -> None:
    """Raises `InputError` if an earlier run in the folder has other settings."""
    if not isinstance(saved, dict) or saved.keys() != settings.keys():
        raise InputError(
            f"out {out!r} has files of another command or version; give another folder"
        )
    for name, value in settings.items():
        if saved.get(name) != value:
            hint = "continue with the same settings, or give another folder"
            raise invalid(
                name, f"{saved.get(name)!r} as in the run in {out!r}", value, hint
            )


def part_file(part: int) -> str:
    """Returns the name of the file of a part."""
    return f"part-{part:06d}.npz"
