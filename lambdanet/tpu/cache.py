# SPDX-License-Identifier: Apache-2.0
"""A cache of compilations, which take minutes and are deterministic."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

from lambdanet.files import write_atomic
from lambdanet.models.weights.hub import cache_dir


class Cache:
    """Results as gzipped JSON, each in a file of `folder` named by its key; the first write makes it."""

    def __init__(self, folder: Path):
        self.folder = folder

    @classmethod
    def standard(cls) -> "Cache":
        """Returns the cache in $LAMBDANET_HOME (default: ~/.cache/lambdanet)."""
        return cls(cache_dir() / "tpu_check")

    def read(self, key: str) -> dict[str, Any] | None:
        """Returns a result; None if it is missing or cannot be read."""
        try:
            return json.loads(gzip.decompress(self._path(key).read_bytes()))
        except (OSError, EOFError, ValueError):
            return None

    def write(self, key: str, result: dict[str, Any]) -> None:
        """Stores a result, unless the folder cannot be written."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path(key), gzip.compress(json.dumps(result).encode(), compresslevel=6))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"
