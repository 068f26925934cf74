# SPDX-License-Identifier: Apache-2.0
"""Samples of arrays in one small file, to compare with what an earlier version computed."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

NUM_SAMPLES = 24  # of each array


def samples(array: Any) -> np.ndarray:
    """Returns the largest absolute value of an array, and some of its values, evenly spaced, as float32."""
    flat = np.ravel(np.asarray(array, "float32"))
    places = np.linspace(0, len(flat) - 1, min(len(flat), NUM_SAMPLES)).astype(int)
    return np.concatenate([[np.abs(flat).max()], flat[places]]).astype("float32")


def save(file: str | Path, found: dict[str, np.ndarray]) -> None:
    """Writes arrays of `samples`, with the commit that is checked out.

    The samples are one array: an entry of the file for each of thousands would take more than they do.
    """
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    ends = np.cumsum([len(x) for x in found.values()])
    values = np.concatenate(list(found.values()))
    np.savez_compressed(
        file, commit=commit, names=list(found), ends=ends, values=values
    )


def load(file: str | Path) -> dict[str, np.ndarray]:
    """Returns the arrays that `save` wrote."""
    with np.load(file) as entries:
        parts = np.split(entries["values"], entries["ends"][:-1])
        return dict(zip(entries["names"].tolist(), parts, strict=True))
