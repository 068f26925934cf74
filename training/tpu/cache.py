# SPDX-License-Identifier: Apache-2.0
"""Answers of the compiler, kept in a folder: a compilation takes minutes and always gives the same."""

import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from lambdanet.models.weights.weight_files import cache_dir

FOLDER = "tpu_check"


class Cache:
    """Answers as JSON, each in a file named by the hash of its question.

    Args:
      folder: of the files; it is made when something is written.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def standard(cls) -> "Cache":
        """Returns the cache in $LAMBDANET_HOME (default: ~/.cache/lambdanet)."""
        return cls(cache_dir() / FOLDER)

    def read(self, key: str) -> dict[str, Any] | None:
        """Returns an answer; None where there is none, or none that can be read."""
        try:
            return json.loads(gzip.decompress(self._path(key).read_bytes()))
        except (OSError, EOFError, ValueError):
            return None

    def write(self, key: str, answer: dict[str, Any]) -> None:
        """Keeps an answer; where the folder cannot be written, nothing is kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                file.write(gzip.compress(json.dumps(answer).encode(), compresslevel=6))
            os.replace(partial, self._path(key))
        except OSError:
            return

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"
