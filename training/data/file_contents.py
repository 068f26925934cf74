# SPDX-License-Identifier: Apache-2.0
"""Fingerprints and copies of picture files."""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path


def fingerprint(files: Sequence[tuple[str, int]]) -> str:
    """Returns a digest of the names, labels and sizes of files, which may be in another folder later.

    Args:
      files: their paths and labels.
    """
    rows = [(os.path.basename(path), label, _size(path)) for path, label in files]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def find_copies(places: Mapping[str, object]) -> list[str]:
    """Returns the files whose content is at another place, too, with the copies of a file beside each other.

    Only files of equal size are read; those that cannot be read are left to the run.

    Args:
      places: the paths of files, and the place of each, such as its split and class.
    """
    sizes = {path: _size(path) for path in places}
    numbers = Counter(sizes.values())
    groups: dict[int, list[str]] = {}
    for path, size in sizes.items():
        if size and numbers[size] > 1:
            groups.setdefault(hash(Path(path).read_bytes()), []).append(path)
    copies = []
    for group in groups.values():
        if len({places[path] for path in group}) > 1:
            copies += group
    return copies


def _size(path: str) -> int:
    """Returns the size of a file in bytes; 0 where it cannot be read."""
    return os.path.getsize(path) if os.access(path, os.R_OK) else 0
